"""Decode prompts with EAGLE's own loop; runs in EAGLE's environment, started by eagle_loop.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(checkout: str, job: Path) -> None:
    """Write what each prompt yields: the ids, and the drafted tokens accepted by each verification."""
    import torch

    sys.path.insert(0, checkout)
    from eagle.model import ea_model

    work = json.loads(job.read_text())
    accepted: list[int] = []
    judge = ea_model.evaluate_posterior

    def recorded(*arguments):
        verdict = judge(*arguments)
        accepted.append(int(verdict[1]))
        return verdict

    ea_model.evaluate_posterior = recorded
    model = ea_model.EaModel.from_pretrained(
        use_eagle3=True,
        base_model_path=work["target"],
        ea_model_path=work["head"],
        total_token=work["nodes"],
        depth=work["depth"],
        top_k=work["top_k"],
        torch_dtype=torch.float32,
    ).eval()
    answers = []
    for prompt in work["prompts"]:
        accepted.clear()
        ids = model.eagenerate(torch.tensor([prompt]), temperature=0.0, max_new_tokens=work["budget"], max_length=2048)
        answers.append({"tokens": ids[0, len(prompt) :].tolist(), "accepted": list(accepted)})
    job.with_name("answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
