"""Print, for each job that would run, why: which key of the config, which file or function changed.

Runs beside Snakemake, also while it runs: it takes no lock and writes nothing. It is given the targets and the config
as `snakemake` is; what lies behind a choice of layers that has not been made is not listed.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snakemake.api import SnakemakeApi
from snakemake.cli import parse_config
from snakemake.exceptions import RuleException, WorkflowError
from snakemake.settings.types import (
    ConfigSettings,
    DAGSettings,
    ExecutionSettings,
    OutputSettings,
    ResourceSettings,
)

from speclayers.command import run
from speclayers.errors import UserError
from speclayers.planning.causes import Planned, in_words
from speclayers.planning.identity import read_records

SNAKEFILE = Path(__file__).resolve().parent.parent / "Snakefile"


def main() -> None:
    """Print the causes of a dry run's jobs."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("targets", nargs="*", help="as for snakemake; before the options")
    arguments.add_argument("--configfile", nargs="+", type=Path, default=[], help="as for snakemake")
    arguments.add_argument("--config", nargs="+", default=[], metavar="KEY=VALUE", help="as for snakemake")
    args = arguments.parse_args()
    with SnakemakeApi(OutputSettings(dryrun=True, log_level_override=logging.ERROR)) as api:
        config = ConfigSettings(config=parse_config(args.config), configfiles=args.configfile)
        loaded = api.workflow(ResourceSettings(cores=1), config_settings=config, snakefile=SNAKEFILE)
        plan = loaded.dag(DAGSettings(targets=set(args.targets), force_incomplete=True))
        try:
            plan.execute_workflow(executor="dryrun", execution_settings=ExecutionSettings(lock=False))
        except (WorkflowError, RuleException) as error:
            raise UserError(str(error)) from error
        workflow = loaded._workflow  # the jobs behind a dry run: no part of the documented interface
        known = read_records(Path(workflow.globals["layout"].results))
        lines = list(in_words(planned_jobs(workflow), known, workflow.globals["identities"].records()))
    print("\n".join(lines) or "Nothing would run.")


def planned_jobs(workflow: Any) -> Iterator[Planned]:
    """Yield the jobs that would run, as Snakemake knows them, without the target rules."""
    dag, stored = workflow.dag, workflow.persistence
    for job in sorted((job for job in dag.needrun_jobs(exclude_finished=False) if job.output), key=dag.jobid):
        reason = dag.reason(job)
        makers = {str(file): other.rule.name for other, files in dag.dependencies[job].items() for file in files}
        again = {str(file) for file in reason.updated_input_run}
        yield Planned(
            rule=job.rule.name,
            wildcards=dict(job.wildcards_dict),
            missing=[str(file) for file in reason.missing_output],
            incomplete=[str(file) for file in reason.incomplete_output],
            newer=[str(file) for file in reason.updated_input if str(file) not in again],
            made_again={file: makers[file] for file in sorted(again)},
            inputs_before=(stored.input(job.output[0]) or []) if reason.input_changed else [],
            inputs_now=[str(file) for file in job.input],
            params_before=sorted(reason.params_changed.only_old) if reason.params_changed else [],
            params_now=sorted(reason.params_changed.only_new) if reason.params_changed else [],
            command_changed=bool(reason.code_changed),
            environment_changed=bool(reason.software_stack_changed),
            forced=reason.forced,
        )


if __name__ == "__main__":
    run(main)
