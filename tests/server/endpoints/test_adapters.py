"""Adapters over HTTP: loaded whole or not at all, in every form, from nowhere else than allowed."""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import FakeEngine
from safetensors.numpy import save

from legos.device import LocalEngine, ModelHandle
from legos.weights.adapter import Adapter, pack_adapter
from legos.weights.folder import write_adapter
from legos.weights.peft import to_peft

BYTES = {"content-type": "application/octet-stream"}


@pytest.fixture
def http(served: Any) -> Any:
    with served.http() as client:
        yield client


@pytest.fixture
def other(model: ModelHandle, engine: LocalEngine) -> Any:
    """Arrays of another policy; whatever was loaded is gone afterwards, and the base is back."""
    base = model.base_adapter()
    rng = np.random.default_rng(5)
    yield {
        name: (0.1 * rng.standard_normal(np.asarray(array).shape)).astype(np.float32)
        for name, array in base.arrays.items()
    }
    for name in list(engine.versions()):
        engine.drop_adapter(name).result()
    engine.load_adapter(base).result()


def adapter_of(model: ModelHandle, arrays: Mapping[str, Any], **fields: Any) -> Adapter:
    assert model.lora is not None
    given: dict[str, Any] = {"name": "policy", "version": 3, "shape": model.lora, "arrays": arrays}
    return Adapter(**(given | fields))


def post_json(http: httpx.Client, data: bytes, **fields: object) -> httpx.Response:
    return http.post("/adapters/load", json={"weights": base64.b64encode(data).decode(), **fields})


def say(http: httpx.Client, **fields: object) -> Any:
    body = {"prompt": [1, 20, 30], "max_tokens": 1, "seed": 1, "return_token_ids": True, **fields}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.slow
def test_all_forms_bring_the_same_adapter(
    http: httpx.Client, model: ModelHandle, other: Mapping[str, Any]
) -> None:
    assert model.lora is not None
    expected = {"name": "policy", "version": 3, "digest": adapter_of(model, other).digest}
    plain, packed = save(dict(other)), pack_adapter(adapter_of(model, other))
    tensors, config = to_peft(adapter_of(model, other))
    theirs = save(tensors)
    scale = model.lora.scale
    answers = [
        post_json(http, plain, version=3),
        post_json(http, plain, version=3, scale=scale, name="policy"),
        post_json(http, packed),
        post_json(http, theirs, version=3, config=config),
        post_json(http, theirs, version=3, scale=scale),
        http.post("/adapters/load?version=3", content=plain, headers=BYTES),
        http.post("/adapters/load", content=packed, headers=BYTES),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()) == (200, expected), answer.text
    listed = http.get("/adapters/version", params={"name": "policy"}).json()
    assert listed == {"adapters": [expected], "max_adapters": 64, **expected}


def test_tokens_carry_the_version_that_is_live(
    http: httpx.Client, model: ModelHandle, other: Mapping[str, Any]
) -> None:
    before = say(http)
    assert post_json(http, save(dict(other)), version=8).status_code == 200
    after = say(http)
    assert (before["versions"], after["versions"]) == ([0], [8])
    assert before["token_logprobs"] != after["token_logprobs"]
    assert say(http, model="policy@8")["versions"] == [8]
    stale = http.post("/v1/completions", json={"prompt": [1], "model": "policy@0"})
    assert stale.status_code == 404


def test_adapters_stand_side_by_side(
    http: httpx.Client, model: ModelHandle, other: Mapping[str, Any]
) -> None:
    alone = say(http)
    assert post_json(http, save(dict(other)), version=2, name="rival").status_code == 200
    ids = [one["id"] for one in http.get("/v1/models").json()["data"]]
    assert ids == ["builtin", "policy", "rival"]
    assert http.get("/v1/models/rival").json()["version"] == 2
    assert say(http)["token_logprobs"] == pytest.approx(alone["token_logprobs"], abs=1e-5)
    assert say(http, model="rival")["versions"] == [2]
    assert say(http, model="policy", adapter="rival")["versions"] == [2]
    for name in ("base", "builtin"):
        assert say(http, model=name)["token_logprobs"] == pytest.approx(
            alone["token_logprobs"], abs=1e-5
        )
    assert http.delete("/adapters/rival").json()["name"] == "rival"
    assert http.delete("/adapters/rival").status_code == 404
    assert http.get("/adapters/version?name=rival").status_code == 404
    assert http.get("/v1/models/rival").status_code == 404


def bad_tensors(arrays: Mapping[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    first = min(arrays)
    array = arrays[first]
    wrong = {
        "shape": (np.zeros((array.shape[0] + 1, array.shape[1]), np.float32), first),
        "infinite": (np.full_like(array, np.inf), first),
        "dtype": (array.astype(np.int32), first),
    }
    made = {kind: ({**arrays, first: bad}, named) for kind, (bad, named) in wrong.items()}
    made["missing"] = ({k: v for k, v in arrays.items() if k != first}, first)
    made["unknown"] = ({**arrays, "model.layers.99.self_attn.q_proj.lora_a": array}, "layers.99")
    made["name"] = ({**arrays, "lm_head.weight": array}, "lm_head.weight")
    return made


@pytest.mark.parametrize("kind", ["shape", "infinite", "dtype", "missing", "unknown", "name"])
def test_a_tensor_that_does_not_fit_is_named_and_nothing_changes(
    http: httpx.Client, other: Mapping[str, Any], kind: str
) -> None:
    before, live = say(http), http.get("/adapters/version").json()
    arrays, named = bad_tensors(other)[kind]
    answer = post_json(http, save(arrays), version=9)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert http.get("/adapters/version").json() == live
    assert say(http) == before


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (b"", "octet-stream", "the upload has no weights"),
        (b"not safetensors at all", "octet-stream", "cannot be read as safetensors"),
        (b"\xff" * 64, "octet-stream", "cannot be read as safetensors"),
        (b"{}", "json", "the upload has no weights"),
        (b"[1]", "json", "the body is no JSON of an upload"),
        (b'{"weights": "a"}', "json", "weights are no base64"),
        (b'{"weights": "%%%%"}', "json", "weights are no base64"),
        (b'{"config": {"weights": "AAAA"}}', "json", "the upload has no weights"),
        (b'{"weights": "AAAA', "json", "the body is no JSON of an upload"),
        (b'{"wieghts": "AAAA"}', "json", "did you mean 'weights'?"),
    ],
)
def test_a_body_that_is_no_adapter(
    http: httpx.Client, content: bytes, kind: str, reason: str
) -> None:
    headers = {"content-type": f"application/{kind}"}
    answer = http.post("/adapters/load?version=1", content=content, headers=headers)
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]["message"]


def test_an_upload_of_another_kind_is_refused(http: httpx.Client) -> None:
    plain = {"content-type": "text/plain"}
    assert http.post("/adapters/load?version=1", content=b"x", headers=plain).status_code == 415


def test_a_misspelt_field_of_a_query_is_named(http: httpx.Client, other: Mapping[str, Any]) -> None:
    live = http.get("/adapters/version").json()
    query = {"nmae": "rival", "version": 5}
    refused = http.post("/adapters/load", params=query, content=save(dict(other)), headers=BYTES)
    assert refused.status_code == 400
    assert "nmae: this field is not known here" in refused.json()["error"]["message"]
    assert http.get("/adapters/version").json() == live


def test_weights_of_peft_without_their_scale_are_refused(
    http: httpx.Client, model: ModelHandle, other: Mapping[str, Any]
) -> None:
    tensors, _ = to_peft(adapter_of(model, other))
    refused = post_json(http, save(tensors), version=3)
    assert refused.status_code == 400, refused.text
    assert "adapter_config.json" in refused.json()["error"]["message"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rank_pattern": {r"((\w|\.)*)*x": 1}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
        ({"use_dora": True}, "use_dora"),
        ({"r": 4.5}, "$.r"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"lora_alpha": -1}, "lora_alpha"),
        ({"lora_alpha": 1e38}, "lora_alpha"),
    ],
)
def test_a_setting_of_peft_that_is_not_taken_is_named_and_stops_nobody(
    http: httpx.Client, model: ModelHandle, other: Mapping[str, Any], settings: Any, named: str
) -> None:
    tensors, config = to_peft(adapter_of(model, other))
    answer = post_json(http, save(tensors), version=9, config={**config, **settings})
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]["message"]
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("scale", [-1.0, 0.0, 1e38])
def test_a_scale_out_of_range_is_named(
    http: httpx.Client, other: Mapping[str, Any], scale: float
) -> None:
    answer = post_json(http, save(dict(other)), version=9, scale=scale)
    assert answer.status_code == 400
    assert "scale is" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["base", "builtin", "a/b", "..", "a@1", "", "x" * 65])
def test_a_name_that_cannot_be(http: httpx.Client, other: Mapping[str, Any], name: str) -> None:
    answer = post_json(http, save(dict(other)), version=1, name=name)
    if name:
        assert answer.status_code == 400
        reason = "is the base model's name" if name == "builtin" else "name has 1 to 64 letters"
        assert reason in answer.json()["error"]["message"]
    else:
        assert answer.json()["name"] == "policy"


def test_escaped_base64_is_read(http: httpx.Client, other: Mapping[str, Any]) -> None:
    text = base64.b64encode(save(dict(other))).decode().replace("/", "\\/")
    body = f'{{"version": 4, "weights": "{text}"}}'
    answer = http.post("/adapters/load", content=body, headers={"content-type": "application/json"})
    assert answer.json()["version"] == 4


def test_another_models_adapter_is_refused(
    fake: Any, other: Mapping[str, Any], model: ModelHandle, tmp_path: Path
) -> None:
    adapter = adapter_of(model, other)
    write_adapter(replace(adapter, base_model="org/large"), tmp_path)
    engine, config = FakeEngine(), json.loads((tmp_path / "adapter_config.json").read_text())
    with fake(engine) as server, server.http() as http:
        answer = post_json(http, pack_adapter(adapter), config=config)
        assert answer.status_code == 400
        assert "trained on model 'org/large' and cannot be put on 'small'" in answer.text
        answer = http.post("/adapters/load", json={"path": str(tmp_path)})
        assert (answer.status_code, "path" in answer.text) == (400, True)
    assert not engine.live


@pytest.mark.nightly
def test_a_large_adapter_stalls_nobody(fake: Any) -> None:
    """20 MB: the loop's longest pause is far below what decoding it in one piece would take."""
    engine = FakeEngine()
    arrays = {
        f"model.layers.{n}.self_attn.q_proj.lora_{letter}": np.ones(shape, np.float32)
        for n in range(64)
        for letter, shape in (("a", (5000, 8)), ("b", (8, 5000)))
    }
    body = {"version": 1, "weights": base64.b64encode(save(arrays)).decode()}
    content = json.dumps(body)
    pauses: list[float] = []
    last = 0.0
    with fake(engine, max_adapter_bytes=2**26) as server, server.http() as http:

        def beat() -> None:
            nonlocal last
            now = time.perf_counter()
            pauses.append(now - last)
            last = now
            if not server.app.state.service.draining:
                server.loop.call_later(0.001, beat)

        def longest() -> float:
            """The longest pause, as a share of the seconds that the request takes."""
            pauses.clear()
            began = time.perf_counter()
            answer = http.post(
                "/adapters/load", content=content, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 200, answer.text
            assert engine.live["policy"].digest == answer.json()["digest"]
            return max(pauses) / (time.perf_counter() - began)

        server.loop.call_soon_threadsafe(beat)
        found = [longest() for _ in range(4)][1:]
    assert len(content) > 25e6
    assert min(found) < 0.3  # both are longer where others keep the machine busy


def test_an_upload_that_is_no_utf8_is_refused(http: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    refused = http.post("/adapters/load", content=b'{"\xff": 1}', headers=headers)
    assert refused.status_code == 400
    assert "is no JSON" in refused.json()["error"]["message"]
