import itertools

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from speclayers.drafting.head import load_head, save_head
from speclayers.drafting.initialise import rope_parameters
from speclayers.errors import UserError
from speclayers.targets.capture import capture_states
from tests.drafts import make_head

FLAGS = ("norm_before_fc", "fc_norm", "norm_output")
COMBINATIONS = [
    dict(zip(FLAGS, values, strict=True))
    for values in itertools.product((False, True), repeat=3)
    if values[:2] != (True, True)  # refused
]
ARCHITECTURES = ["llama", "qwen3", "gemma", "gemma2", "mistral", "gpt_neox", "gpt2"]


def slots(head, batch=2, count=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    width = head.config.width
    dtype = head.fc.weight.dtype
    states = torch.randn(batch, count, len(head.config.layers) * width, generator=generator).to(dtype)
    embeddings = torch.randn(batch, count, width, generator=generator).to(dtype)
    return head.fuse(states), embeddings, torch.arange(count).expand(batch, count)


def test_tensors_are_named_as_in_the_eagle_layout(tiny_target):
    projections = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    layer = [*projections, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    layer += ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
    expected = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"} | {f"midlayer.{n}.weight" for n in layer}
    assert set(make_head(tiny_target()).state_dict()) == expected


def perturb(head, seed=0):
    """Give the norms weights other than one, so that a norm left out or swapped shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 1:
                parameter.mul_(0.5 + torch.rand(parameter.shape, generator=generator))
    return head


@pytest.mark.parametrize("flags", COMBINATIONS, ids=lambda flags: "+".join(k for k in flags if flags[k]) or "none")
def test_flags_survive_saving_with_the_tensors_that_engines_expect(tiny_target, tmp_path, flags):
    target = tiny_target()
    head = perturb(make_head(target, layers=(1, 3), **flags))
    shapes = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items() if "norm.weight" in name}
    assert shapes.get("input_norm.weight") == ((2 * target.width,) if flags["norm_before_fc"] else None)
    layer_norms = {name for name in head.state_dict() if name.startswith("fc_norm.")}
    assert layer_norms == ({"fc_norm.0.weight", "fc_norm.1.weight"} if flags["fc_norm"] else set())
    save_head(tmp_path, head)
    loaded = load_head(tmp_path, target)
    assert loaded.config == head.config
    assert {flag: getattr(loaded.config, flag) for flag in FLAGS} == flags
    torch.testing.assert_close(loaded(*slots(loaded)), head(*slots(head)), rtol=0, atol=0)
    torch.testing.assert_close(loaded.logits(loaded(*slots(loaded))), head.logits(head(*slots(head))), rtol=0, atol=0)


@torch.no_grad()
def test_each_flag_is_the_norm_it_names(tiny_target):
    target = tiny_target()
    width, eps = target.width, 1e-6

    def normed(rows, weight):
        return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * weight

    plain = perturb(make_head(target, layers=(1, 3)).double())
    states = 3 * torch.randn(5, 2 * width, generator=torch.Generator().manual_seed(1)).double()

    def with_flags(**flags):
        head = perturb(make_head(target, layers=(1, 3), **flags).double(), seed=2)
        head.load_state_dict(plain.state_dict(), strict=False)
        return head

    whole = with_flags(norm_before_fc=True)
    expected = plain.fc(normed(states, whole.input_norm.weight))
    torch.testing.assert_close(whole.fuse(states), expected)
    each = with_flags(fc_norm=True)
    halves = [normed(half, norm.weight) for half, norm in zip(states.split(width, -1), each.fc_norm, strict=True)]
    torch.testing.assert_close(each.fuse(states), plain.fc(torch.cat(halves, -1)))

    behind = with_flags(norm_output=True)
    output, fed_back = plain(*slots(plain)), behind(*slots(behind))
    torch.testing.assert_close(fed_back, normed(output, plain.norm.weight))
    torch.testing.assert_close(behind.logits(fed_back), plain.logits(output))


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_decoding_in_pieces_equals_one_pass(tiny_target, kv_heads):
    head = make_head(tiny_target(), kv_heads=kv_heads).double()
    hidden, embeddings, positions = slots(head)
    whole = head(hidden, embeddings, positions)
    cache = head.new_cache(16, batch=2)
    pieces = []
    for start, end in [(0, 4), (4, 5), (5, 8), (8, 10)]:
        cut = slice(start, end)
        pieces.append(head(hidden[:, cut], embeddings[:, cut], positions[:, cut], None, cache))
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_cropped_cache_forgets(tiny_target):
    head = make_head(tiny_target()).double()
    hidden, embeddings, positions = slots(head)
    cache = head.new_cache(12, batch=2)
    head(hidden[:, :6], embeddings[:, :6], positions[:, :6], None, cache)
    head(hidden[:, :4] + 1, embeddings[:, :4], positions[:, 6:], None, cache)
    cache.crop_to(6)
    after = head(hidden[:, 6:], embeddings[:, 6:], positions[:, 6:], None, cache)
    torch.testing.assert_close(after, head(hidden, embeddings, positions)[:, 6:], rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="12 rows cannot hold"):
        head(hidden, embeddings, positions, None, cache)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma"])
def test_without_the_embedding_half_a_new_head_is_the_targets_last_block(tiny_target, architecture):
    target = tiny_target(architecture, layers=4)
    head = make_head(target, layers=(3,), draft_ids=range(256))
    head.fc.weight.copy_(torch.eye(target.width))
    for projection in (head.midlayer.self_attn.k_proj, head.midlayer.self_attn.v_proj):
        projection.weight[:, : target.width] = 0
    ids = torch.randint(2, 256, (1, 12), generator=torch.Generator().manual_seed(0))
    with capture_states(target, [3, 4]) as captured:
        expected = target.model(ids, use_cache=False).logits
    output = head(head.fuse(captured[3]), target.embed(ids), torch.arange(12)[None])
    torch.testing.assert_close(output, captured[4], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head.logits(output), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("initialise", ["target", "random"])
def test_heads_fit_every_family(tiny_target, architecture, initialise):
    target = tiny_target(architecture)
    head = make_head(target, initialise=initialise)
    assert all(torch.isfinite(parameter).all() for parameter in head.parameters())
    assert torch.isfinite(head.logits(head(*slots(head)))).all()
    assert (head.config.initialised_from_target == ()) == (initialise == "random")


def test_only_matching_tensors_come_from_the_target(tiny_target, caplog):
    caplog.set_level("INFO")
    assert make_head(tiny_target("gpt2")).config.initialised_from_target == ("lm_head.weight",)
    assert "from the target: lm_head.weight; random: midlayer.self_attn.q_proj.weight" in caplog.text
    gemma2 = make_head(tiny_target("gemma2")).config.initialised_from_target
    # the norms behind Gemma 2's sub-layers have no counterpart in the head
    assert not {"midlayer.self_attn.o_proj.weight", "midlayer.mlp.down_proj.weight"} & set(gemma2)
    assert "midlayer.post_attention_layernorm.weight" in gemma2


@torch.no_grad()
def test_query_norm_goes_into_the_weights_at_its_expected_size(tiny_target):
    target = tiny_target("qwen3", width=64)
    head = make_head(target)
    normed = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    last = target.anatomy.blocks[-1].self_attn
    wanted = last.q_norm(last.q_proj(normed).view(4096, 4, 16))
    found = head.midlayer.self_attn.q_proj(torch.cat((torch.zeros_like(normed), normed), -1)).view(4096, 4, 16)
    sizes = found.square().mean((0, 2)).sqrt() / wanted.square().mean((0, 2)).sqrt()
    torch.testing.assert_close(sizes, torch.ones(4), rtol=0.05, atol=0)


def test_more_key_value_heads_repeat_the_targets(tiny_target):
    target = tiny_target()
    few, many = make_head(target, kv_heads=2), make_head(target, kv_heads=4)
    repeated = few.midlayer.self_attn.k_proj.weight.view(2, 8, -1).repeat_interleave(2, 0).flatten(0, 1)
    torch.testing.assert_close(many.midlayer.self_attn.k_proj.weight, repeated)
    hidden, embeddings, positions = slots(few)
    torch.testing.assert_close(few(hidden, embeddings, positions), many(hidden, embeddings, positions))


def test_fewer_key_value_heads_than_the_targets_start_random(tiny_target):
    taken = make_head(tiny_target(), kv_heads=1).config.initialised_from_target
    assert "midlayer.self_attn.k_proj.weight" not in taken
    assert "midlayer.self_attn.q_proj.weight" in taken


@pytest.mark.parametrize("initialise", ["target", "random"])
def test_heads_of_one_seed_start_equal_whatever_their_layers(tiny_target, initialise):
    target = tiny_target()
    wide = make_head(target, layers=(1, 3, 5), initialise=initialise)
    other = make_head(target, layers=(0, 2, 4), initialise=initialise)
    single = make_head(target, layers=(6,), initialise=initialise)
    for name, tensor in wide.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=0, atol=0)
        if name != "fc.weight":
            torch.testing.assert_close(single.state_dict()[name], tensor, rtol=0, atol=0)
    torch.testing.assert_close(single.fc.weight, wide.fc.weight[:, -target.width :], rtol=0, atol=0)
    assert not torch.equal(make_head(target, seed=1).fc.weight, make_head(target, seed=0).fc.weight)


def test_making_a_head_leaves_the_global_generator_alone(tiny_target):
    target = tiny_target()
    before = torch.get_rng_state()
    make_head(target, initialise="random")
    assert torch.equal(before, torch.get_rng_state())


LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 2e4, "factor": 4.0, "original_max_position_embeddings": 128}
ROPE = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 100000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    LLAMA3,
    YARN,
]


@pytest.mark.parametrize(
    "parameters", ROPE, ids=lambda parameters: f"{parameters['rope_type']}-{parameters['rope_theta']:g}"
)
def test_rotary_embedding_is_the_targets(tiny_target, tmp_path, parameters):
    target = tiny_target(rope_parameters=parameters)
    head = make_head(target)
    assert head.config.rope_parameters["rope_theta"] == parameters["rope_theta"]
    save_head(tmp_path, head)
    head = load_head(tmp_path, target)
    positions = torch.arange(400)[None]
    like = torch.zeros(1)
    for ours, theirs in zip(
        head.rotations(like, positions), target.anatomy.body.rotary_emb(like, positions), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_rope_scaling_is_kept_and_partial_rotation_is_not():
    assert rope_parameters(LlamaConfig(rope_parameters=dict(LLAMA3))) == LLAMA3
    partial = LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.5})
    assert rope_parameters(partial) == {"rope_type": "default", "rope_theta": 2e4}
    assert rope_parameters(object()) == {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_heads": 3}, "draft.kv_heads: 3 does not divide the 4 attention heads"),
        ({"layers": (1, 7)}, "layer 7: llama-0 has layers 0 to 6"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tiny_target, settings, message):
    with pytest.raises(UserError, match=message):
        make_head(tiny_target(), **settings)


def test_saved_head_loads_equal(tiny_target, tmp_path):
    target = tiny_target()
    head = make_head(target, layers=(2,), kv_heads=4)
    save_head(tmp_path, head)
    loaded = load_head(tmp_path, target)
    assert loaded.config == head.config
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=0, atol=0)
    torch.testing.assert_close(loaded.logits(loaded(*slots(loaded))), head.logits(head(*slots(head))))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert loaded.target_ids(torch.tensor([0, 1, 127])).tolist() == [0, 2, 254]
    assert loaded.draft_ids.tolist() == list(range(0, 256, 2))


def drop(name):
    return lambda tensors: tensors.pop(name)


def replace(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("midlayer.hidden_norm.weight"), "tensor midlayer.hidden_norm.weight is missing"),
        (drop("d2t"), "tensor d2t is missing"),
        (replace("fc.weight", torch.zeros(32, 64)), r"tensor fc.weight has shape \(32, 64\), expected \(32, 96\)"),
        (replace("extra", torch.zeros(1)), "tensor extra is unknown"),
        (replace("d2t", torch.ones(128, dtype=torch.int64)), "d2t holds another draft vocabulary than config.json"),
        (replace("d2t", torch.full((128,), 255)), "d2t points outside the vocabulary of 256"),
        (replace("d2t", torch.zeros(3, dtype=torch.int64)), r"tensor d2t has \(3,\), expected \(128,\)"),
    ],
)
def test_broken_heads_are_refused_by_tensor(tiny_target, tmp_path, change, message):
    target = tiny_target()
    save_head(tmp_path, make_head(target))
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=message):
        load_head(tmp_path, target)


def test_unreadable_heads_are_refused(tiny_target, tmp_path):
    target = tiny_target()
    with pytest.raises(UserError, match=r"config\.json: file is missing"):
        load_head(tmp_path, target)
    save_head(tmp_path, make_head(target))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors: is no readable safetensors file"):
        load_head(tmp_path, target)
    weights.unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: file is missing"):
        load_head(tmp_path, target)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.json: is no head's config: layers"):
        load_head(tmp_path, target)


def test_head_of_another_target_is_refused(tiny_target, tmp_path):
    save_head(tmp_path, make_head(tiny_target()))
    with pytest.raises(UserError, match=r"trained for llama-0 \(.*\), not for llama-1"):
        load_head(tmp_path, tiny_target(seed=1))
