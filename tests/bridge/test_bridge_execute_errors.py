"""What may be told of a refusal: no part of the object (DESIGN §7; traces.md malformed shows the original telling the whole pod)."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.api_errors import MAX_MESSAGE, already_exists, classify, refusal, secrets_of

SECRET = "hunter2-secret"


def told(code: int, message: str, *causes: tuple[str, str], secrets: tuple[str, ...] = ()) -> str:
    details = {"causes": [{"field": field, "message": text} for field, text in causes]}
    body = {"kind": "Status", "reason": "X", "message": message, "details": details}
    return refusal(code, json.dumps(body).encode(), secrets).message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, "done"),
        (201, "done"),
        (202, "done"),
        (400, "failed"),
        (401, "retry"),
        (403, "failed"),
        (404, "missing"),
        (408, "retry"),
        (409, "conflict"),
        (410, "failed"),
        (413, "failed"),
        (422, "failed"),
        (429, "retry"),
        (500, "retry"),
        (503, "retry"),
        (507, "retry"),
    ],
)
def test_kinds_of_answers(status: int, kind: str) -> None:
    assert classify(status) == kind


DNS = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (
            ("spec.containers[0].name", f'Invalid value: "Bad_{SECRET}": must be a DNS label'),
            "spec.containers[0].name: Invalid value: must be a DNS label",
        ),
        (("spec.containers[0].image", "Required value"), "spec.containers[0].image: Required value"),
        (
            ("spec.restartPolicy", f'Unsupported value: "{SECRET}": supported values: "Always", "Never"'),
            "spec.restartPolicy: Unsupported value: supported values: …, …",
        ),
        (
            ("metadata.labels", "Too long: may not be more than 63 bytes"),
            "metadata.labels: Too long: may not be more than 63 bytes",
        ),
        (
            ("spec", f'Forbidden: pod updates may not change fields other than\n core.PodSpec{{\n Env: "{SECRET}"'),
            "spec: Forbidden: pod updates may not change fields other than …",
        ),
        (
            ("spec.containers[0].env[0]", f'Invalid value: {{"name":"A","value":"{SECRET}"}}: may not be {SECRET}'),
            "spec.containers[0].env[0]: Invalid value",
        ),
        (
            ("spec.containers[0].env[0]", f"Invalid value: core.EnvVar{{Value:{SECRET}}}: x"),
            "spec.containers[0].env[0]: Invalid value",
        ),
        (("x", f'Duplicate value: "{SECRET}"'), "x: Duplicate value"),
        (("x", f'Invalid value: "{SECRET}\\" and more": too much'), "x: Invalid value: too much"),
        (("x", f'Invalid value: "{SECRET} cut of'), "x: Invalid value"),
        (("x", f"{SECRET} is no phrase"), "x: Invalid value"),
        ((f"not a path {SECRET}!", "Required value"), "Required value"),
    ],
)
def test_422_keeps_field_and_phrase(cause: tuple[str, str], text: str) -> None:
    """k8s.io/apimachinery field.Error: `<phrase>: <value>: <detail>`."""
    assert told(422, f"whole {SECRET}", cause) == text


def test_the_real_servers_text_about_a_name() -> None:
    text = told(422, "", ("spec.containers[0].name", f'Invalid value: "Bad_Name": {DNS}'))
    assert text.startswith("spec.containers[0].name: Invalid value: a lowercase RFC 1123 label must")
    assert len(text) <= MAX_MESSAGE


@pytest.mark.parametrize(
    ("code", "message", "text"),
    [
        (
            403,
            'pods "a-0" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2',
            "pods … is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
        ),
        (
            403,
            f'admission webhook "p.example.com" denied the request: value {SECRET} of "{SECRET}" is bad',
            "denied by admission webhook p.example.com: value … of … is bad",
        ),
        (
            400,
            f'json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string "{SECRET}"',
            "the object cannot be read at EnvVar.spec.containers.env.value",
        ),
        (
            400,
            f'error found in #10 byte of ...|lue":{SECRET}|..., bigger context ...|{SECRET}|...',
            "the object cannot be read",
        ),
        (413, f"Request entity too large: {{env: {SECRET}}}", "Request entity too large: …"),
        (404, 'namespaces "x" not found', "namespaces … not found"),
    ],
)
def test_other_refusals(code: int, message: str, text: str) -> None:
    assert told(code, message, secrets=(SECRET,)) == text


def test_a_body_that_is_no_status_tells_nothing() -> None:
    assert refusal(403, f"<html>{SECRET}</html>".encode()) == refusal(403, b"{}")
    assert refusal(403, b'{"reason":"no word!"}').reason == ""
    assert not already_exists(b"<html>")
    assert already_exists(b'{"reason":"AlreadyExists"}')


POD = {
    "metadata": {"annotations": {"token": "annotation-secret"}},
    "spec": {
        "containers": [{"name": "m", "env": [{"name": "A", "value": SECRET}, {"name": "B"}], "args": ["--key=x"]}],
        "initContainers": [{"env": [{"name": "A", "value": "init-secret"}]}],
    },
}


def test_a_pods_secrets_are_found() -> None:
    assert secrets_of(POD) == ["annotation-secret", SECRET, "--key=x", "init-secret"]
    assert (
        secrets_of({"metadata": {"annotations": [1]}, "spec": {"containers": [1, {"env": {"x": 1}, "args": "x"}]}})
        == []
    )


def test_a_value_at_the_beginning_of_a_cause_is_no_fixed_phrase() -> None:
    body = {"reason": "Invalid", "details": {"causes": [{"field": "spec", "message": "Aaaaaa"}]}}
    assert refusal(422, msgspec.json.encode(body), ["Aaaaaa"]).message == "spec: Invalid value"
    assert refusal(422, msgspec.json.encode(body)).message == "spec: Aaaaaa"


_value = st.text(min_size=6, max_size=40).filter(lambda text: "…" not in text and text.strip() == text)


@given(
    _value,
    st.sampled_from([400, 403, 422, 413]),
    st.sampled_from(["{}", "x {} y", 'x "{}" y', "Invalid value: {}: z", "map[a:{}]", 'denied: "{}', "{}{}"]),
)
def test_no_value_that_was_sent_survives(value: str, code: int, form: str) -> None:
    """Whatever an API server or a webhook makes of it, as it is, quoted as in JSON, or twice."""
    for shown in (value, msgspec.json.encode(value).decode()[1:-1]):
        text = form.format(shown, shown)
        body = {"reason": "X", "message": text, "details": {"causes": [{"field": "spec", "message": text}]}}
        message = refusal(code, msgspec.json.encode(body), [value]).message
        kept = told(code, form.format("", ""), ("spec", form.format("", "")))
        assert value not in message or value in kept or value in "the object cannot be read; Invalid value; spec: "
