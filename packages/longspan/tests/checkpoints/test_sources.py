"""Every bad source is one clear sentence, and nothing unsafe is read."""

from __future__ import annotations

import json

import pytest
import torch

from longspan import InputError
from longspan.checkpoints import from_transformers, sources


@pytest.fixture
def folder(published, tmp_path):
    """A good checkpoint on disk, to be spoilt."""
    published("RobertaForMaskedLM").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def check_refused(source, message):
    with pytest.raises(InputError, match=message) as caught:
        from_transformers(source)
    assert "\n" not in str(caught.value)


def rewrite(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not None}))


def test_missing_places(folder, tmp_path):
    check_refused(tmp_path / "nowhere", "nowhere' does not exist")
    check_refused(str(tmp_path / "nowhere"), "nowhere' does not exist")
    check_refused("./nowhere", "nowhere' does not exist")
    unknown = "nobody/has-this-model"
    check_refused(unknown, f"'{unknown}' is neither a directory nor a name that can be fetched")
    check_refused("no such/na me", "'no such/na me' is neither a directory nor a Hub name")
    check_refused(folder / "model.safetensors", "is a file; give the directory")
    check_refused(3, "int object is not understood")


def test_a_name_without_a_network_is_refused_at_once(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://huggingface.co.invalid")
    monkeypatch.setattr(sources.PreTrainedConfig, "get_config_dict", None)  # must not be asked
    check_refused("nobody/has-this-model", "huggingface.co.invalid cannot be reached and the cache has no such model")


def test_shards(published, tmp_path, widest):
    theirs = published("RobertaForMaskedLM")
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    ids = torch.randint(3, 61, (1, 9))
    assert widest(theirs(ids).logits, from_transformers(tmp_path)(ids).logits) <= 1e-5
    shards[1].write_bytes(shards[1].read_bytes()[:-7])
    check_refused(tmp_path, f"{shards[1].name}' is damaged")
    shards[1].unlink()
    check_refused(tmp_path, f"{shards[1].name}' is named by the index but is missing")
    (tmp_path / "model.safetensors.index.json").write_text("{")
    check_refused(tmp_path, "is not a valid index")


def test_remote_code_is_not_run(folder, tmp_path):
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    rewrite(folder, auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil", "AutoModelForMaskedLM": "evil.Evil"})
    from_transformers(folder)
    assert not (tmp_path / "ran").exists()


def test_without_architectures_the_body_is_loaded(published, tmp_path):
    published("BertModel").save_pretrained(tmp_path)
    rewrite(tmp_path, architectures=None)
    assert type(from_transformers(tmp_path)).__name__ == "LongspanModel"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 12}, "do not fit its config.json: .* has shape .* but the configuration asks for"),
        ({"vocab_size": 62}, "do not fit its config.json: .*\\(61"),
        (
            {"num_hidden_layers": 3},
            "do not fit its config.json: roberta.encoder.layer.2.* is missing \\(and 15 more\\)",
        ),
        ({"num_hidden_layers": 1}, "do not fit its config.json: roberta.encoder.layer.1.* has no place"),
        ({"num_attention_heads": 5}, "config.json .* is not usable"),
        ({"architectures": ["RobertaForSequenceClassification"]}, "classifier.* is missing"),
    ],
)
def test_weights_that_do_not_fit(changes, message, folder):
    rewrite(folder, **changes)
    check_refused(folder, message)
