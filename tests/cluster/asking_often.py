"""Snakemake's command line, whose plugin asks SLURM for news every second.

Left alone it waits ten seconds longer each time that nothing has ended, whatever its settings, so that jobs of twenty
seconds are noticed late and the tests take twice as long.
"""

import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

Executor.next_seconds_between_status_checks = property(lambda executor: 1, lambda executor, seconds: None)

if __name__ == "__main__":
    main(sys.argv[1:])
