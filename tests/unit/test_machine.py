"""A job of SLURM tells what it runs on."""

import json

from speclayers.machine import ran_on


def test_a_job_tells_its_id_its_node_and_the_types_of_its_gpus(tmp_path):
    for number, model in enumerate(("NVIDIA H200", "NVIDIA H200", "O'Brien 1")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t {model}\nIRQ: 17\n")
    told = json.loads(ran_on({"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n3"}, tmp_path))
    assert told == {"slurm_job": "12", "node": "n3", "gpu_type": "NVIDIA H200, OBrien 1"}


def test_outside_slurm_and_without_a_driver_nothing_is_told(tmp_path):
    assert ran_on({}, tmp_path) == "{}"
    assert json.loads(ran_on({"SLURM_JOB_ID": "12"}, tmp_path / "none")) == {"slurm_job": "12"}
