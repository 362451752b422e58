"""The one exception for mistakes that the person running a study can mend."""


class UserError(Exception):
    """A mistake in a config, a file or a model, told in one line.

    The message names the key, file or layer, what was found and what was expected. Scripts print
    it on standard error and exit with status 2; any other exception is a bug and keeps its traceback.
    """
