"""What the simulated API server claims about a real one. Every case runs on the simulator and, when
SANDLOG_TEST_KUBECONFIG names one, on a real server: where they differ, the simulator is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from simcluster_api import COUNTS, GROUP, JSON_PATCH, Api, job, owner, pod, pool, sandbox, status

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
BS = "batchsandboxes"
FINALIZER = "test.opensandbox.io/hold"


def causes(answer: Json) -> set[tuple[str, str]]:
    return {(cause["field"], cause["message"]) for cause in answer["details"]["causes"]}


# --- create -----------------------------------------------------------------------------------------


async def test_a_new_object_gets_uid_version_generation_time_and_manager(api: Api) -> None:
    obj = await api.made(BS, sandbox("a"))
    metadata = obj["metadata"]
    assert metadata["generation"] == 1
    assert metadata["namespace"] == api.ns
    assert len(metadata["uid"]) == 36
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["creationTimestamp"].endswith("Z")
    assert len(metadata["creationTimestamp"]) == 20
    entry = metadata["managedFields"][0]
    assert (entry["manager"], entry["operation"]) == ("conformance", "Update")


async def test_server_owned_metadata_of_the_client_is_ignored(api: Api) -> None:
    given = {
        "uid": "mine",
        "generation": 9,
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "deletionTimestamp": "2020-01-01T00:00:00Z",
    }
    metadata = (await api.made(BS, sandbox("a", **given)))["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["generation"] == 1
    assert metadata["creationTimestamp"] != "2020-01-01T00:00:00Z"
    assert "deletionTimestamp" not in metadata


async def test_defaults_and_pruning(api: Api) -> None:
    obj = await api.made(BS, sandbox("a", {"unknown": 1, "template": {"anything": {"goes": [1]}}}))
    assert obj["spec"] == {
        "replicas": 1,
        "taskResourcePolicyWhenCompleted": "Retain",
        "template": {"anything": {"goes": [1]}},
    }


async def test_null_for_a_field_with_default_is_the_default(api: Api) -> None:
    assert (await api.made(BS, sandbox("a", {"replicas": None})))["spec"]["replicas"] == 1


async def test_a_spec_may_be_absent(api: Api) -> None:
    body = {k: v for k, v in sandbox("a").items() if k != "spec"}
    assert "spec" not in await api.made(BS, body)


async def test_status_is_dropped_on_create(api: Api) -> None:
    assert "status" not in await api.made(BS, {**sandbox("a"), **status(phase="Succeed")})
    made = await api.made("pods", {**pod("p"), "status": {"phase": "Running", "podIP": "1.2.3.4"}})
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


async def test_names_are_taken_once(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    code, answer = await api.create(BS, sandbox("a"))
    assert (code, answer["reason"]) == (409, "AlreadyExists")
    assert answer["message"] == f'{BS}.sandbox.opensandbox.io "a" already exists'
    assert answer["details"] == {"name": "a", "group": "sandbox.opensandbox.io", "kind": BS}


async def test_generate_name_adds_five_characters(api: Api) -> None:
    name = (await api.made(BS, sandbox("", generateName="gen-")))["metadata"]["name"]
    assert name.startswith("gen-")
    assert len(name) == len("gen-") + 5
    assert set(name[4:]) <= set("bcdfghjklmnpqrstvwxz2456789")


async def test_generate_name_is_cut_to_63(api: Api) -> None:
    made = await api.made("pods", {**pod(""), "metadata": {"generateName": "x" * 252}})
    assert len(made["metadata"]["name"]) == 63


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "metadata.name: Required value: name or generateName is required"),
        ("A_b", "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters"),
        ("-a", "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters"),
        ("a" * 254, "must be no more than 253 characters"),
    ],
)
@pytest.mark.parametrize("plural", [BS, "pods"])
async def test_bad_names_are_refused(api: Api, plural: str, name: str, text: str) -> None:
    code, answer = await api.create(plural, sandbox(name) if plural == BS else pod(name))
    assert (code, answer["reason"]) == (422, "Invalid")
    assert text in answer["message"]


async def test_a_name_of_253_characters_is_fine(api: Api) -> None:
    await api.made(BS, sandbox("a" * 253))


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"kind": "Wrong"}, 422, 'kind: Invalid value: "Wrong": must be BatchSandbox'),
        ({"apiVersion": "v2"}, 400, "the API version in the data (v2) does not match the expected API version"),
        ({"metadata": {"name": "x", "namespace": "other"}}, 400, "the namespace of the provided object does not match"),
        ({"metadata": {"name": "x", "resourceVersion": "12"}}, 500, "resourceVersion should not be set"),
        (
            {"metadata": {"name": "x", "annotations": {"a": 1}}},
            400,
            "json: cannot unmarshal number into Go struct field",
        ),
    ],
)
async def test_bodies_that_do_not_fit_the_request(api: Api, change: Json, code: int, text: str) -> None:
    answered, answer = await api.create(BS, {**sandbox("x"), **change})
    assert answered == code
    assert text in answer["message"]


@pytest.mark.parametrize("body", [b"{bad", b"[1]", b"{}", b'{"metadata":{"name":"x"}}'])
async def test_unreadable_bodies_are_400(api: Api, body: bytes) -> None:
    code, answer = await api.call("POST", api.path(BS), body)
    assert (code, answer["reason"]) == (400, "BadRequest")


async def test_a_missing_namespace_is_404(api: Api) -> None:
    code, answer = await api.call("POST", api.path(BS, ns="no-such"), sandbox("a"))
    assert (code, answer["message"]) == (404, 'namespaces "no-such" not found')


async def test_dry_run_stores_nothing(api: Api) -> None:
    code, _ = await api.create(BS, sandbox("a"), dryRun="All")
    assert code == 201
    assert (await api.get(BS, "a"))[0] == 404


async def test_strict_field_validation_refuses_unknown_fields(api: Api) -> None:
    code, answer = await api.create(BS, sandbox("a", {"replicas": 1, "foo": 1}), fieldValidation="Strict")
    assert code == 400
    assert 'strict decoding error: unknown field "spec.foo"' in answer["message"]


# --- validation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        (
            {"replicas": -1},
            "spec.replicas",
            "Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
        ),
        (
            {"replicas": "x"},
            "spec.replicas",
            'Invalid value: "string": spec.replicas in body must be of type integer: "string"',
        ),
        (
            {"replicas": 1.5},
            "spec.replicas",
            'Invalid value: "float64": spec.replicas in body must be of type int32: "float64"',
        ),
        (
            {"replicas": 2**31},
            "<nil>",
            'Invalid value: "": Checked value must be of type integer with format int32 in spec.replicas',
        ),
        (
            {"expireTime": "soon"},
            "spec.expireTime",
            'Invalid value: "soon": spec.expireTime in body must be of type date-time: "soon"',
        ),
        (
            {"pause": "yes"},
            "spec.pause",
            'Invalid value: "string": spec.pause in body must be of type boolean: "string"',
        ),
        (
            {"poolRef": 7},
            "spec.poolRef",
            'Invalid value: "integer": spec.poolRef in body must be of type string: "integer"',
        ),
        ("text", "spec", 'Invalid value: "string": spec in body must be of type object: "string"'),
    ],
)
async def test_schema_violations(api: Api, spec: Any, field: str, text: str) -> None:
    code, answer = await api.create(BS, {**sandbox("c"), "spec": spec})
    assert code == 422
    assert (field, text) in causes(answer)
    assert answer["message"].startswith('BatchSandbox.sandbox.opensandbox.io "c" is invalid: ')


async def test_every_violation_is_told(api: Api) -> None:
    code, answer = await api.create(BS, sandbox("c", {"replicas": -1, "expireTime": "x"}))
    assert code == 422
    assert {field for field, _ in causes(answer)} == {"spec.replicas", "spec.expireTime"}
    assert "is invalid: [" in answer["message"]


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123+02:00"])
async def test_times_that_are_fine(api: Api, time: str) -> None:
    assert (await api.made(BS, sandbox("a", {"expireTime": time})))["spec"]["expireTime"] == time


async def test_required_fields_within_an_object(api: Api) -> None:
    body = {**pool("p"), "spec": {"capacitySpec": {"poolMax": 1}}}
    code, answer = await api.create("pools", body)
    assert code == 422
    wanted = {f"spec.capacitySpec.{name}" for name in ("bufferMax", "bufferMin", "poolMin")}
    assert causes(answer) == {(field, "Required value") for field in wanted}


@pytest.mark.parametrize("value", [3, "25%"])
async def test_int_or_string(api: Api, value: Any) -> None:
    made = await api.made("pools", pool("p", scaleStrategy={"maxUnavailable": value}))
    assert made["spec"]["scaleStrategy"] == {"maxUnavailable": value}


async def test_nested_default(api: Api) -> None:
    made = await api.made("pools", pool("p", recycleStrategy={}))
    assert made["spec"]["recycleStrategy"] == {"type": "Delete"}


async def test_status_violations_have_the_servers_words(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    code, answer = await api.patch(BS, "a", {"status": {"phase": "Running"}}, "status")
    assert code == 422
    text = (
        'Unsupported value: "Running": supported values: "Pending", "Succeed", "Pausing", "Paused", '
        '"Resuming", "Failed"'
    )
    required = {(f"status.{name}", "Required value") for name in COUNTS}
    assert causes(answer) == {("status.phase", text)} | required


async def test_condition_lists_are_keyed_by_type(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    ready = {"type": "Ready", "status": "True"}
    code, answer = await api.patch(BS, "a", status(conditions=[ready, ready]), "status")
    assert code == 422
    assert causes(answer) == {("status.conditions[1]", 'Duplicate value: {"type":"Ready"}')}


async def test_bad_conditions(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    bad = {"type": "Ready", "status": "Maybe", "lastTransitionTime": "zz"}
    code, answer = await api.patch(BS, "a", status(conditions=[bad]), "status")
    assert code == 422
    where = "status.conditions[0]"
    assert causes(answer) == {
        (f"{where}.status", 'Unsupported value: "Maybe": supported values: "True", "False"'),
        (
            f"{where}.lastTransitionTime",
            'Invalid value: "zz": conditions[0].lastTransitionTime in body must be of type date-time: "zz"',
        ),
    }


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"a": "x" * 64}, "must be no more than 63 bytes"),
        ({"a": "_bad!"}, "a valid label must be an empty string or consist of alphanumeric characters"),
        ({"/a": "x"}, "prefix part"),
    ],
)
@pytest.mark.parametrize("plural", [BS, "pods"])
async def test_bad_labels(api: Api, plural: str, labels: Json, text: str) -> None:
    body = sandbox("a", labels=labels) if plural == BS else pod("a", labels=labels)
    code, answer = await api.create(plural, body)
    assert code == 422
    assert text in answer["message"]


async def test_owner_references_must_be_complete(api: Api) -> None:
    code, answer = await api.create(BS, sandbox("a", ownerReferences=[{"kind": "Pod", "name": "x"}]))
    assert code == 422
    assert {field for field, _ in causes(answer)} == {
        "metadata.ownerReferences.apiVersion",
        "metadata.ownerReferences.uid",
    }


async def test_only_one_controller(api: Api) -> None:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": n, "uid": n, "controller": True} for n in ("x", "y")]
    code, answer = await api.create(BS, sandbox("a", ownerReferences=owners))
    assert code == 422
    assert "Only one reference can have Controller set to true" in answer["message"]


# --- pods and other built-in kinds -------------------------------------------------------------------------


def containers(*given: Json) -> Json:
    return {"containers": list(given)}


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        (containers(), "spec.containers", "Required value"),
        (containers({"name": "c"}), "spec.containers[0].image", "Required value"),
        (containers({"image": "i"}), "spec.containers[0].name", "Required value"),
        (
            containers({"name": "c", "image": "i"}, {"name": "c", "image": "i"}),
            "spec.containers[1].name",
            'Duplicate value: "c"',
        ),
        (
            containers({"name": "c", "image": "i", "env": [{"name": ""}]}),
            "spec.containers[0].env[0].name",
            "Required value",
        ),
        (
            containers({"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}),
            "spec.containers[0].volumeMounts[0].name",
            'Not found: "v"',
        ),
        (
            {"restartPolicy": "Nope"},
            "spec.restartPolicy",
            'Unsupported value: "Nope": supported values: "Always", "OnFailure", "Never"',
        ),
    ],
)
async def test_pod_violations(api: Api, spec: Json, field: str, text: str) -> None:
    code, answer = await api.create("pods", pod("p", spec))
    assert code == 422
    assert answer["message"].startswith('Pod "p" is invalid: ')
    assert (field, text) in causes(answer)


async def test_a_pod_of_the_wrong_shape_is_400(api: Api) -> None:
    code, answer = await api.create("pods", pod("p", {"containers": "x"}))
    assert code == 400
    assert answer["message"] == (
        'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field '
        "PodSpec.spec.containers of type []v1.Container"
    )


async def test_pod_defaults(api: Api) -> None:
    spec = (await api.made("pods", pod("p", {"madeUp": 1})))["spec"]
    assert "madeUp" not in spec
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert len(spec["tolerations"]) == 2


async def test_pod_spec_is_fixed_but_for_images(api: Api) -> None:
    await api.made("pods", pod("p"))
    code, answer = await api.patch("pods", "p", {"spec": {"nodeName": "x"}})
    assert code == 422
    assert "pod updates may not change fields other than `spec.containers[*].image`" in answer["message"]
    code, answer = await api.patch("pods", "p", {"spec": {"activeDeadlineSeconds": 5}})
    assert (code, answer["metadata"]["generation"]) == (200, 2)
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "b:2"}]
    code, answer = await api.patch("pods", "p", image, ctype=JSON_PATCH)
    assert (code, answer["metadata"]["generation"]) == (200, 3)


async def test_pod_status_takes_labels_but_no_spec(api: Api) -> None:
    await api.made("pods", pod("p"))
    patch = {"metadata": {"labels": {"x": "y"}}, "spec": {"nodeName": "k"}, "status": {"podIP": "10.1.0.1"}}
    code, answer = await api.patch("pods", "p", patch, "status")
    assert code == 200
    assert answer["metadata"]["labels"] == {"x": "y"}
    assert "nodeName" not in answer["spec"]
    assert answer["status"]["podIPs"] == [{"ip": "10.1.0.1"}]
    assert answer["metadata"]["generation"] == 1


async def test_pod_status_adds_and_removes_finalizers_but_no_owners(api: Api) -> None:
    await api.made("pods", pod("p"))
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]
    patch = {"metadata": {"finalizers": [FINALIZER], "ownerReferences": owners}, "status": {"phase": "Running"}}
    _, answer = await api.patch("pods", "p", patch, "status")
    assert answer["metadata"]["finalizers"] == [FINALIZER]
    assert "ownerReferences" not in answer["metadata"]
    _, answer = await api.patch("pods", "p", {"metadata": {"finalizers": None}}, "status")
    assert "finalizers" not in answer["metadata"]


async def test_a_status_for_another_uid_is_refused(api: Api) -> None:
    await api.made("pods", pod("p"))
    patch = {"metadata": {"uid": "nope"}, "status": {"phase": "Running"}}
    assert (await api.patch("pods", "p", patch, "status"))[0] == 422


async def test_a_binding_for_another_uid_is_a_conflict(api: Api) -> None:
    await api.made("pods", pod("p"))
    uid = "00000000-0000-4000-8000-000000000000"
    binding = {"metadata": {"name": "p", "uid": uid}, "target": {"kind": "Node", "name": "node-1"}}
    assert (await api.call("POST", api.path("pods", "p", "binding"), binding))[0] == 409


async def test_main_pod_writes_leave_the_status(api: Api) -> None:
    await api.made("pods", pod("p"))
    code, answer = await api.patch("pods", "p", {"status": {"phase": "Failed"}})
    assert (code, answer["status"]["phase"]) == (200, "Pending")


async def test_a_pod_is_bound_once(api: Api) -> None:
    await api.made("pods", pod("p"))
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "node-1"}}
    path = api.path("pods", "p", "binding")
    code, answer = await api.call("POST", path, binding)
    assert (code, answer["status"]) == (201, "Success")
    code, answer = await api.call("POST", path, binding)
    assert code == 409
    assert 'pod p is already assigned to node "node-1"' in answer["message"]
    bound = (await api.get("pods", "p"))[1]
    assert bound["spec"]["nodeName"] == "node-1"
    assert [c["type"] for c in bound["status"]["conditions"]] == ["PodScheduled"]
    assert bound["metadata"]["generation"] == 1


async def test_events_stay_in_their_namespace(api: Api) -> None:
    event = {"metadata": {"name": "e"}, "reason": "x", "involvedObject": {"kind": "Pod", "namespace": "other"}}
    code, answer = await api.create("events", event)
    assert code == 422
    assert "involvedObject.namespace" in answer["message"]


async def test_events_are_selected_by_involved_object(api: Api) -> None:
    for name in ("a", "b"):
        involved = {"kind": "Pod", "name": name, "namespace": api.ns}
        await api.made("events", {"metadata": {"name": f"e-{name}"}, "reason": "x", "involvedObject": involved})
    selector = "involvedObject.kind=Pod,involvedObject.name=a"
    assert await api.names("events", fieldSelector=selector) == ["e-a"]


async def test_secrets_keep_strings_encoded(api: Api) -> None:
    made = await api.made("secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert (made["data"], made["type"]) == ({"a": "Yg=="}, "Opaque")
    assert "stringData" not in made
    code, _ = await api.create("secrets", {"metadata": {"name": "t"}, "data": {"a": "!!"}})
    assert code == 400


async def test_a_job_must_end(api: Api) -> None:
    body = job("j")
    del body["spec"]["template"]["spec"]["restartPolicy"]
    code, answer = await api.create("jobs", body)
    assert code == 422
    assert ("spec.template.spec.restartPolicy", 'Required value: valid values: "OnFailure", "Never"') in causes(answer)


async def test_job_labels_and_defaults(api: Api) -> None:
    made = await api.made("jobs", job("j"))
    uid = made["metadata"]["uid"]
    labels = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": uid,
        "job-name": "j",
    }
    assert made["spec"]["template"]["metadata"]["labels"] == labels
    assert (made["spec"]["backoffLimit"], made["spec"]["completions"]) == (6, 1)


async def test_a_job_template_is_fixed(api: Api) -> None:
    await api.made("jobs", job("j"))
    patch = {"spec": {"template": {"spec": {"nodeName": "x"}}}}
    assert (await api.patch("jobs", "j", patch))[0] == 422


# --- size ------------------------------------------------------------------------------------------------------


async def test_sizes(api: Api) -> None:
    text = "x" * (1600 * 1024)
    code, answer = await api.create(BS, sandbox("a", {"replicas": 1, "template": {"t": text}}))
    assert (code, answer["message"]) == (500, "etcdserver: request is too large")
    code, answer = await api.create(BS, sandbox("a", {"replicas": 1, "template": {"t": text * 2}}))
    assert (code, answer["reason"]) == (413, "RequestEntityTooLarge")
    code, _ = await api.create(BS, sandbox("a", {"replicas": 1, "template": {"t": "x" * 1_400_000}}))
    assert code == 201


# --- read --------------------------------------------------------------------------------------------------------


async def test_an_unknown_object_is_404_with_details(api: Api) -> None:
    code, answer = await api.get(BS, "nope")
    assert code == 404
    assert answer == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'{BS}.sandbox.opensandbox.io "nope" not found',
        "reason": "NotFound",
        "details": {"name": "nope", "group": "sandbox.opensandbox.io", "kind": BS},
        "code": 404,
    }


async def test_an_unknown_resource_is_a_plain_404(api: Api) -> None:
    assert await api.call("GET", api.path(BS).replace(BS, "nothings")) == (404, "404 page not found\n")


async def test_methods_that_make_no_sense_are_405(api: Api) -> None:
    assert (await api.call("POST", "/api/v1/pods", pod("p")))[0] == 405
    assert (await api.call("PUT", api.path("pods"), pod("p")))[0] == 405


async def test_lists_of_built_in_kinds_leave_out_the_items_kind(api: Api) -> None:
    await api.made("pods", pod("p"))
    await api.made(BS, sandbox("a"))
    code, pods = await api.list("pods")
    assert (code, pods["kind"]) == (200, "PodList")
    assert "kind" not in pods["items"][0]
    sandboxes = (await api.list(BS))[1]
    assert (sandboxes["kind"], sandboxes["items"][0]["kind"]) == ("BatchSandboxList", "BatchSandbox")


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("a=1", ["x", "y"]),
        ("a==1,b=2", ["x"]),
        ("a!=1", ["z"]),
        ("a in (1,9)", ["x", "y"]),
        ("b notin (2)", ["y", "z"]),
        ("b", ["x"]),
        ("!b", ["y", "z"]),
        ("a=1,!b", ["y"]),
    ],
)
async def test_label_selectors(api: Api, selector: str, wanted: list[str]) -> None:
    for name, labels in (("x", {"a": "1", "b": "2"}), ("y", {"a": "1"}), ("z", {"c": "3"})):
        await api.made(BS, sandbox(name, labels=labels))
    assert await api.names(BS, labelSelector=selector) == wanted


@pytest.mark.parametrize("selector", ["a==,,", "=b", "a in (1"])
async def test_bad_label_selectors(api: Api, selector: str) -> None:
    assert (await api.list(BS, labelSelector=selector))[0] == 400


async def test_field_selectors(api: Api) -> None:
    for name in ("x", "y"):
        await api.made(BS, sandbox(name))
        await api.made("pods", pod(name, {"nodeName": "n1"} if name == "x" else {}))
    assert await api.names(BS, fieldSelector="metadata.name=x") == ["x"]
    assert await api.names(BS, fieldSelector="metadata.name!=x") == ["y"]
    assert await api.names("pods", fieldSelector="spec.nodeName=n1") == ["x"]
    assert await api.names("pods", fieldSelector="spec.nodeName=") == ["y"]
    assert await api.names("pods", fieldSelector="status.phase=Pending,metadata.name=y") == ["y"]


async def test_field_selectors_of_custom_resources_know_metadata_only(api: Api) -> None:
    code, answer = await api.list(BS, fieldSelector="status.phase=x")
    assert (code, answer["message"]) == (400, "field label not supported: status.phase")


async def test_chunks_are_one_snapshot(api: Api) -> None:
    for name in "abcd":
        await api.made(BS, sandbox(name))
    _, first = await api.list(BS, limit=2)
    assert [i["metadata"]["name"] for i in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 2
    await api.delete(BS, "c")
    await api.made(BS, sandbox("e"))
    _, second = await api.list(BS, limit=9, **{"continue": first["metadata"]["continue"]})
    assert [i["metadata"]["name"] for i in second["items"]] == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert not second["metadata"]["continue"]


async def test_a_bad_continue_token_is_400(api: Api) -> None:
    assert (await api.list(BS, **{"continue": "abc"}))[0] == 400


async def test_a_continue_token_goes_with_no_version(api: Api) -> None:
    for name in "ab":
        await api.made(BS, sandbox(name))
    _, first = await api.list(BS, limit=1)
    code, _ = await api.list(BS, resourceVersion=5, **{"continue": first["metadata"]["continue"]})
    assert code == 400


async def test_a_list_at_an_exact_version_is_the_past(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    then = await api.version(BS)
    await api.made(BS, sandbox("b"))
    await api.delete(BS, "a")
    query = {"resourceVersion": then, "resourceVersionMatch": "Exact"}
    assert await api.names(BS, **query) == ["a"]
    assert (await api.list(BS, **query))[1]["metadata"]["resourceVersion"] == then
    assert await api.names(BS, resourceVersion=then) == ["b"]
    assert await api.names(BS, resourceVersion=0) == ["b"]


async def test_versions_from_the_future_are_504(api: Api) -> None:
    code, answer = await api.list(BS, resourceVersion=10**9)
    assert (code, answer["reason"]) == (504, "Timeout")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersion": "x"}, 400),
        ({"limit": "x"}, 400),
        ({"limit": "-1"}, 200),
    ],
)
async def test_list_options(api: Api, query: Json, code: int) -> None:
    assert (await api.list(BS, **query))[0] == code


async def test_lists_of_a_namespace_that_is_not_there_are_empty(api: Api) -> None:
    code, answer = await api.call("GET", api.path("pods", ns="no-such"))
    assert (code, answer["items"]) == (200, [])


# --- update and patch ----------------------------------------------------------------------------------------------


async def test_generation_counts_spec_changes_only(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    generations = [
        (await api.patch(BS, "a", {"metadata": {"labels": {"x": "1"}}}))[1]["metadata"]["generation"],
        (await api.patch(BS, "a", {"spec": {"pause": True}}))[1]["metadata"]["generation"],
        (await api.patch(BS, "a", status(phase="Succeed"), "status"))[1]["metadata"]["generation"],
        (await api.patch(BS, "a", {"spec": {"pause": None}}))[1]["metadata"]["generation"],
    ]
    assert generations == [1, 2, 2, 3]


async def test_a_write_that_changes_nothing_keeps_the_version(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    code, answer = await api.patch(BS, "a", {"spec": {"replicas": 1}})
    assert (code, answer["metadata"]["resourceVersion"]) == (200, made["metadata"]["resourceVersion"])
    _, first = await api.patch(BS, "a", status(), "status")
    _, second = await api.patch(BS, "a", status(), "status")
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_a_status_write_changes_the_status_only(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    metadata = {"labels": {"l": "1"}, "annotations": {"z": "1"}, "finalizers": [FINALIZER]}
    patch = {"metadata": metadata, "spec": {"replicas": 7}, **status(phase="Succeed", unknown=1)}
    code, answer = await api.patch(BS, "a", patch, "status")
    assert code == 200
    assert not {"labels", "annotations", "finalizers"} & answer["metadata"].keys()
    assert answer["spec"]["replicas"] == 1
    assert answer["status"] == status(phase="Succeed")["status"]


async def test_a_main_write_leaves_the_status(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    await api.patch(BS, "a", status(phase="Succeed"), "status")
    patch = {"metadata": {"labels": {"q": "1"}}, "status": {"phase": "Failed"}}
    code, answer = await api.patch(BS, "a", patch)
    assert (code, answer["status"]["phase"], answer["metadata"]["labels"]) == (200, "Succeed", {"q": "1"})


@pytest.mark.parametrize("sub", ["", "status"])
async def test_the_version_in_a_patch_is_a_lock(api: Api, sub: str) -> None:
    made = await api.made(BS, sandbox("a"))
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"pause": True}, **status(ready=1)}
    assert (await api.patch(BS, "a", patch, sub))[0] == 200
    code, answer = await api.patch(BS, "a", patch, sub)
    assert (code, answer["reason"]) == (409, "Conflict")
    assert answer["message"] == (
        f'Operation cannot be fulfilled on {BS}.sandbox.opensandbox.io "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_a_put_replaces_and_needs_a_version(api: Api) -> None:
    made = await api.made(BS, sandbox("a", {"replicas": 2, "poolRef": "p"}))
    code, answer = await api.put(BS, "a", sandbox("a"))
    assert code == 422
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in answer["message"]
    version = made["metadata"]["resourceVersion"]
    code, answer = await api.put(BS, "a", sandbox("a", resourceVersion=version))
    assert (code, answer["spec"]["replicas"], answer["metadata"]["generation"]) == (200, 1, 2)
    assert "poolRef" not in answer["spec"]
    assert (await api.put(BS, "a", sandbox("a", {"replicas": 3}, resourceVersion=version)))[0] == 409


async def test_a_put_for_another_uid_is_a_conflict(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    wrong = sandbox("a", uid="wrong", resourceVersion=made["metadata"]["resourceVersion"])
    assert (await api.put(BS, "a", wrong))[0] == 409


async def test_a_put_creates_nothing(api: Api) -> None:
    assert (await api.put(BS, "new", sandbox("new", resourceVersion="1")))[0] == 404
    assert (await api.put("pods", "new", pod("new")))[0] == 404


async def test_a_status_put_ignores_spec_and_metadata(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    version = made["metadata"]["resourceVersion"]
    body = {**sandbox("a", {"replicas": 8}, labels={"no": "1"}, resourceVersion=version), **status(ready=1)}
    code, answer = await api.put(BS, "a", body, "status")
    assert (code, answer["spec"]["replicas"], answer["status"]["ready"]) == (200, 1, 1)
    assert "labels" not in answer["metadata"]


@pytest.mark.parametrize(
    ("patch", "code", "text"),
    [
        ({"metadata": {"uid": "1"}}, 422, 'metadata.uid: Invalid value: "1": field is immutable'),
        ({"metadata": {"name": "zz"}}, 400, "the name of the object (zz) does not match the name on the URL (a)"),
        ({"metadata": {"namespace": "other"}}, 400, "the namespace of the provided object does not match"),
        ({"metadata": {"name": None}}, 400, "was undeterminable: name must be provided"),
        ({"metadata": {"resourceVersion": None}}, 422, "must be specified for an update"),
        ({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}, 422, "field is immutable"),
        ({"metadata": {"annotations": {"k": 1}}}, 422, "json: cannot unmarshal number into Go struct field"),
        ({"metadata": "x"}, 422, "json: cannot unmarshal string into Go value of type v1.ObjectMeta"),
        ({"kind": "Foo"}, 422, 'kind: Invalid value: "Foo": must be BatchSandbox'),
        ({"apiVersion": "v9"}, 422, f'apiVersion: Invalid value: "v9": must be {GROUP}'),
        ([1], 400, "error decoding patch: json: cannot unmarshal array into Go value"),
        ("text", 400, "error decoding patch: json: cannot unmarshal string into Go value"),
    ],
)
async def test_patches_that_are_refused(api: Api, patch: Any, code: int, text: str) -> None:
    await api.made(BS, sandbox("a"))
    answered, answer = await api.patch(BS, "a", patch)
    assert answered == code
    assert text in answer["message"]


async def test_server_owned_metadata_cannot_be_patched_away(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    patch = {"metadata": {"generation": 77, "creationTimestamp": None, "deletionTimestamp": None}}
    code, answer = await api.patch(BS, "a", patch)
    assert code == 200
    for name in ("generation", "creationTimestamp", "resourceVersion"):
        assert answer["metadata"][name] == made["metadata"][name]


async def test_merge_patch_of_null(api: Api) -> None:
    await api.made(BS, sandbox("a", {"replicas": 2, "poolRef": "p"}, annotations={"k": "v"}))
    code, answer = await api.patch(
        BS, "a", {"metadata": {"annotations": {"k": None}}, "spec": {"poolRef": None, "replicas": None}}
    )
    assert code == 200
    assert "annotations" not in answer["metadata"]
    assert answer["spec"] == {"replicas": 1, "taskResourcePolicyWhenCompleted": "Retain"}
    code, answer = await api.patch(BS, "a", {"spec": None})
    assert (code, "spec" in answer, answer["metadata"]["generation"]) == (200, False, 3)


async def test_json_patch(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    patch = [
        {"op": "test", "path": "/spec/replicas", "value": 1},
        {"op": "add", "path": "/metadata/annotations", "value": {"a/b": "v"}},
        {"op": "replace", "path": "/metadata/annotations/a~1b", "value": "w"},
        {"op": "add", "path": "/spec/pause", "value": True},
    ]
    code, answer = await api.patch(BS, "a", patch, ctype=JSON_PATCH)
    assert (code, answer["metadata"]["annotations"], answer["spec"]["pause"]) == (200, {"a/b": "w"}, True)


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/spec/replicas", "value": 9},
        {"op": "remove", "path": "/spec/nope"},
        {"op": "replace", "path": "/nope/nope", "value": 1},
        {"op": "add", "path": "/metadata/annotations/k", "value": "v"},
    ],
)
async def test_json_patches_that_cannot_be_applied_are_422(api: Api, operation: Json) -> None:
    await api.made(BS, sandbox("a"))
    code, answer = await api.patch(BS, "a", [operation], ctype=JSON_PATCH)
    assert (code, answer["reason"]) == (422, "Invalid")


async def test_json_patch_replace_of_an_absent_key_adds_it(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    patch = [{"op": "replace", "path": "/spec/pause", "value": True}]
    code, answer = await api.patch(BS, "a", patch, ctype=JSON_PATCH)
    assert (code, answer["spec"]["pause"]) == (200, True)


@pytest.mark.parametrize("ctype", ["application/strategic-merge-patch+json", "application/json", "text/plain"])
async def test_other_patch_types_are_415_for_custom_resources(api: Api, ctype: str) -> None:
    await api.made(BS, sandbox("a"))
    assert (await api.patch(BS, "a", {"spec": {"pause": True}}, ctype=ctype))[0] == 415


async def test_patches_of_what_is_not_there_are_404(api: Api) -> None:
    assert (await api.patch(BS, "nope", {}))[0] == 404
    assert (await api.patch(BS, "nope", {}, "status"))[0] == 404


# --- delete --------------------------------------------------------------------------------------------------------


async def test_a_delete_answers_a_status(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    code, answer = await api.delete(BS, "a")
    assert (code, answer["status"]) == (200, "Success")
    uid = made["metadata"]["uid"]
    assert answer["details"] == {"name": "a", "group": "sandbox.opensandbox.io", "kind": BS, "uid": uid}
    assert (await api.delete(BS, "a"))[0] == 404


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ({"uid": "zz"}, "the UID in the precondition (zz) does not match the UID in record"),
        ({"resourceVersion": "1"}, "the ResourceVersion in the precondition (1) does not match"),
    ],
)
@pytest.mark.parametrize("plural", [BS, "pods"])
async def test_preconditions(api: Api, plural: str, condition: Json, text: str) -> None:
    made = await api.made(plural, sandbox("a") if plural == BS else pod("a"))
    code, answer = await api.delete(plural, "a", {"preconditions": condition})
    assert (code, answer["reason"]) == (409, "Conflict")
    assert text in answer["message"]
    right = {key: made["metadata"][key] for key in condition}
    assert (await api.delete(plural, "a", {"preconditions": right}))[0] == 200


async def test_a_finalizer_holds_the_object(api: Api) -> None:
    await api.made(BS, sandbox("a", finalizers=[FINALIZER]))
    code, held = await api.delete(BS, "a")
    assert (code, held["metadata"]["generation"]) == (200, 2)
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    _, again = await api.delete(BS, "a")
    assert again["metadata"]["resourceVersion"] == held["metadata"]["resourceVersion"]
    code, answer = await api.patch(BS, "a", {"metadata": {"finalizers": [FINALIZER, "test.opensandbox.io/b"]}})
    assert code == 422
    assert "no new finalizers can be added if the object is being deleted" in answer["message"]
    code, answer = await api.patch(BS, "a", {"spec": {"replicas": 4}})
    assert (code, answer["metadata"]["generation"]) == (200, 3)
    assert (await api.patch(BS, "a", status(ready=1), "status"))[0] == 200
    assert (await api.patch(BS, "a", {"metadata": {"finalizers": None}}))[0] == 200
    assert (await api.get(BS, "a"))[0] == 404


async def test_a_pod_without_node_goes_at_once(api: Api) -> None:
    await api.made("pods", pod("p"))
    version = await api.version("pods")
    code, answer = await api.delete("pods", "p")
    assert (code, answer["kind"]) == (200, "Pod")
    assert (await api.get("pods", "p"))[0] == 404
    events = await api.events("pods", 2, resourceVersion=version)
    assert [kind for kind, _ in events] == ["MODIFIED", "DELETED"]
    assert events[0][1]["metadata"]["deletionGracePeriodSeconds"] == 0


async def test_a_pod_on_a_node_has_grace(api: Api) -> None:
    await api.made("pods", pod("p", {"nodeName": "n", "terminationGracePeriodSeconds": 7}))
    _, answer = await api.delete("pods", "p")
    assert (answer["metadata"]["deletionGracePeriodSeconds"], answer["metadata"]["generation"]) == (7, 2)
    _, longer = await api.delete("pods", "p", gracePeriodSeconds=60)
    assert longer["metadata"]["resourceVersion"] == answer["metadata"]["resourceVersion"]
    _, shorter = await api.delete("pods", "p", gracePeriodSeconds=5)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    uid = answer["metadata"]["uid"]
    code, _ = await api.delete("pods", "p", {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
    assert code == 200
    assert (await api.get("pods", "p"))[0] == 404


async def test_a_finished_pod_has_no_grace(api: Api) -> None:
    await api.made("pods", pod("p", {"nodeName": "n"}))
    await api.patch("pods", "p", {"status": {"phase": "Succeeded"}}, "status")
    await api.delete("pods", "p")
    assert (await api.get("pods", "p"))[0] == 404


async def test_finalizers_and_grace_both_hold_a_pod(api: Api) -> None:
    await api.made("pods", pod("p", {"nodeName": "n"}, finalizers=[FINALIZER]))
    await api.delete("pods", "p")
    _, answer = await api.delete("pods", "p", {"gracePeriodSeconds": 0})
    assert answer["metadata"]["finalizers"] == [FINALIZER]
    assert (await api.patch("pods", "p", {"metadata": {"finalizers": None}}))[0] == 200
    assert (await api.get("pods", "p"))[0] == 404


async def test_grace_alone_holds_a_pod_whose_finalizers_went(api: Api) -> None:
    await api.made("pods", pod("p", {"nodeName": "n"}, finalizers=[FINALIZER]))
    await api.delete("pods", "p")
    await api.patch("pods", "p", {"metadata": {"finalizers": None}})
    assert (await api.get("pods", "p"))[0] == 200


async def test_delete_collection_by_selector(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.made(BS, sandbox(name, labels={"x": "1" if name != "c" else "2"}))
    code, answer = await api.call("DELETE", api.path(BS), labelSelector="x=1")
    assert (code, [i["metadata"]["name"] for i in answer["items"]]) == (200, ["a", "b"])
    assert await api.names(BS) == ["c"]


async def test_unknown_propagation_is_422(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    assert (await api.delete(BS, "a", {"propagationPolicy": "Nope"}))[0] == 422


# --- garbage collection --------------------------------------------------------------------------------------------


async def test_dependents_follow_their_owner(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    await api.made("pods", pod("p", ownerReferences=[owner(made, controller=True)]))
    await api.delete(BS, "a")
    await api.gone("pods", "p")


async def test_an_owner_that_never_was_is_gone(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    stranger = {**owner(made), "uid": "00000000-0000-4000-8000-000000000000"}
    await api.made(BS, sandbox("b", ownerReferences=[stranger]))
    await api.gone(BS, "b")
    assert (await api.get(BS, "a"))[0] == 200


async def test_one_owner_left_is_enough(api: Api) -> None:
    owners = [owner(await api.made(BS, sandbox(name))) for name in ("a", "b")]
    await api.made(BS, sandbox("c", ownerReferences=owners))
    await api.delete(BS, "a")
    left = await api.until(BS, "c", lambda o: len(o["metadata"]["ownerReferences"]) == 1)
    assert left["metadata"]["ownerReferences"][0]["name"] == "b"


async def test_foreground_deletion_takes_dependents_first(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    reference = owner(made, blockOwnerDeletion=True)
    await api.made(BS, sandbox("b", ownerReferences=[reference], finalizers=[FINALIZER]))
    _, answer = await api.delete(BS, "a", {"propagationPolicy": "Foreground"})
    assert answer["metadata"]["finalizers"] == ["foregroundDeletion"]
    await api.until(BS, "b", lambda o: "deletionTimestamp" in o["metadata"])
    assert (await api.get(BS, "a"))[0] == 200
    await api.patch(BS, "b", {"metadata": {"finalizers": [FINALIZER]}})
    _, held = await api.get(BS, "b")
    kept = [f for f in held["metadata"]["finalizers"] if f != FINALIZER]
    await api.patch(BS, "b", {"metadata": {"finalizers": kept or None}})
    await api.gone(BS, "b")
    await api.gone(BS, "a")


async def test_orphans_stay(api: Api) -> None:
    made = await api.made(BS, sandbox("a"))
    await api.made(BS, sandbox("b", ownerReferences=[owner(made)]))
    await api.delete(BS, "a", propagationPolicy="Orphan")
    await api.gone(BS, "a")
    left = (await api.get(BS, "b"))[1]
    assert "ownerReferences" not in left["metadata"]


async def test_jobs_orphan_by_default(api: Api) -> None:
    await api.made("jobs", job("j", suspend=True))
    _, answer = await api.delete("jobs", "j")
    assert answer["metadata"]["finalizers"] == ["orphan"]
    await api.gone("jobs", "j")


# --- jobs -------------------------------------------------------------------------------------------------------------


async def job_pod(api: Api, name: str) -> Json:
    await api.until("jobs", name, lambda o: o["status"].get("active") == 1)
    _, pods = await api.list("pods", labelSelector=f"job-name={name}")
    return pods["items"][-1]


async def test_a_job_makes_a_pod_and_completes(api: Api) -> None:
    made = await api.made("jobs", job("j", backoffLimit=0))
    found = await job_pod(api, "j")
    metadata = found["metadata"]
    assert metadata["name"].startswith("j-")
    assert len(metadata["name"]) == len("j-") + 5
    assert metadata["labels"]["batch.kubernetes.io/job-name"] == "j"
    assert metadata["ownerReferences"] == [owner(made, controller=True, blockOwnerDeletion=True)]
    assert metadata["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    await api.patch("pods", metadata["name"], {"status": {"phase": "Succeeded"}}, "status")
    done = await api.until("jobs", "j", lambda o: o["status"].get("succeeded") == 1)
    assert [c["type"] for c in done["status"]["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert "active" not in done["status"]
    assert "completionTime" in done["status"]
    left = (await api.get("pods", metadata["name"]))[1]
    assert "finalizers" not in left["metadata"]
    await api.delete("jobs", "j", {"propagationPolicy": "Background"})
    await api.gone("pods", metadata["name"])


async def test_a_job_fails_when_its_pods_failed(api: Api) -> None:
    await api.made("jobs", job("j", backoffLimit=0))
    found = await job_pod(api, "j")
    await api.patch("pods", found["metadata"]["name"], {"status": {"phase": "Failed"}}, "status")
    done = await api.until("jobs", "j", lambda o: len(o["status"].get("conditions", [])) == 2)
    conditions = done["status"]["conditions"]
    assert [c["type"] for c in conditions] == ["FailureTarget", "Failed"]
    assert {c["reason"] for c in conditions} == {"BackoffLimitExceeded"}
    assert conditions[1]["message"] == "Job has reached the specified backoff limit"
    assert done["status"]["failed"] == 1


async def test_a_job_past_its_deadline_fails(api: Api) -> None:
    await api.made("jobs", job("j", activeDeadlineSeconds=1))
    done = await api.until("jobs", "j", lambda o: len(o["status"].get("conditions", [])) == 2)
    assert done["status"]["conditions"][1]["reason"] == "DeadlineExceeded"
    assert done["status"]["conditions"][1]["message"] == "Job was active longer than specified deadline"


async def test_a_finished_job_goes_after_its_ttl(api: Api) -> None:
    await api.made("jobs", job("j", backoffLimit=0, ttlSecondsAfterFinished=0))
    found = await job_pod(api, "j")
    await api.patch("pods", found["metadata"]["name"], {"status": {"phase": "Succeeded"}}, "status")
    await api.gone("jobs", "j")
    await api.gone("pods", found["metadata"]["name"])


# --- watch ------------------------------------------------------------------------------------------------------------


def seen(events: list[tuple[str, Json]]) -> list[tuple[str, str]]:
    return [(kind, obj["metadata"]["name"]) for kind, obj in events]


async def test_a_watch_resumes_after_a_version(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    version = await api.version(BS)
    _, patched = await api.patch(BS, "a", {"spec": {"pause": True}})
    await api.made(BS, sandbox("b"))
    await api.delete(BS, "a")
    events = await api.events(BS, 3, resourceVersion=version)
    assert seen(events) == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert events[0][1] == patched
    versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in events]
    assert versions == sorted(set(versions))


async def test_a_watch_from_zero_begins_with_what_there_is(api: Api) -> None:
    for name in ("a", "b"):
        await api.made(BS, sandbox(name))
    assert seen(await api.events(BS, 2, resourceVersion=0)) == [("ADDED", "a"), ("ADDED", "b")]


async def test_initial_events_end_with_a_bookmark(api: Api) -> None:
    await api.made(BS, sandbox("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    events = await api.events(BS, 2, **query)
    assert [kind for kind, _ in events] == ["ADDED", "BOOKMARK"]
    assert events[1][1]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_leaving_a_selector_is_a_deletion_with_the_last_matching_state(api: Api) -> None:
    version = await api.version(BS)
    await api.made(BS, sandbox("t", labels={"a": "1"}))
    _, left = await api.patch(BS, "t", {"metadata": {"labels": {"a": "2"}}})
    await api.patch(BS, "t", {"spec": {"replicas": 2}})
    await api.patch(BS, "t", {"metadata": {"labels": {"a": "1"}}})
    await api.delete(BS, "t")
    events = await api.events(BS, 4, resourceVersion=version, labelSelector="a=1")
    assert [kind for kind, _ in events] == ["ADDED", "DELETED", "ADDED", "DELETED"]
    gone = events[1][1]["metadata"]
    assert (gone["labels"], gone["resourceVersion"]) == ({"a": "1"}, left["metadata"]["resourceVersion"])
    assert events[2][1]["metadata"]["generation"] == 2


async def test_a_field_selector_in_a_watch(api: Api) -> None:
    version = await api.version(BS)
    for name in ("a", "b", "c"):
        await api.made(BS, sandbox(name))
    events = await api.events(BS, 1, resourceVersion=version, fieldSelector="metadata.name=c")
    assert seen(events) == [("ADDED", "c")]


async def test_field_transitions_of_pods(api: Api) -> None:
    await api.made("pods", pod("p"))
    version = await api.version("pods")
    await api.patch("pods", "p", {"status": {"phase": "Running"}}, "status")
    await api.patch("pods", "p", {"status": {"phase": "Failed"}}, "status")
    events = await api.events("pods", 2, resourceVersion=version, fieldSelector="status.phase=Running")
    assert seen(events) == [("ADDED", "p"), ("DELETED", "p")]


async def test_a_watch_of_too_old_a_version_is_an_error_event_410(api: Api) -> None:
    assert await api.watch_error(BS, resourceVersion=1) == 410


async def test_a_watch_of_no_version_at_all_is_500(api: Api) -> None:
    assert await api.watch_error(BS, resourceVersion="zz") == 500


async def test_initial_events_need_their_match(api: Api) -> None:
    assert await api.watch_error(BS, sendInitialEvents="true") == 422


async def test_a_watch_ends_at_its_timeout_with_a_bookmark_if_asked(api: Api) -> None:
    version = await api.version(BS)
    query = {"resourceVersion": version, "timeoutSeconds": 1, "allowWatchBookmarks": "true"}
    events = await api.events(BS, 99, **query)
    assert {kind for kind, _ in events} <= {"BOOKMARK"}


# --- the rest -----------------------------------------------------------------------------------------------------------


async def test_a_namespace_is_emptied_and_goes(api: Api) -> None:
    await api.made("pods", pod("p"))
    held = await api.made(BS, sandbox("a", finalizers=[FINALIZER]))
    code, answer = await api.call("DELETE", f"/api/v1/namespaces/{api.ns}")
    assert (code, answer["status"]["phase"]) == (200, "Terminating")
    code, answer = await api.create("pods", pod("late"))
    assert code == 403
    assert "because it is being terminated" in answer["message"]
    await api.gone("pods", "p")
    await api.until(BS, "a", lambda o: "deletionTimestamp" in o["metadata"])
    assert (await api.call("GET", f"/api/v1/namespaces/{api.ns}"))[0] == 200
    assert held["metadata"]["finalizers"] == [FINALIZER]
    await api.patch(BS, "a", {"metadata": {"finalizers": None}})
    await api.gone(BS, "a")


async def test_namespace_names_have_no_dots(api: Api) -> None:
    code, answer = await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "a.b"}})
    assert code == 422
    assert "must not contain dots" in answer["message"]


async def test_leases(api: Api) -> None:
    made = await api.made("leases", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}})
    assert made["spec"] == {"holderIdentity": "x"}
    assert "generation" not in made["metadata"]


@pytest.mark.parametrize("path", ["/readyz", "/healthz"])
async def test_health(api: Api, path: str) -> None:
    assert await api.call("GET", path) == (200, "ok")


async def test_discovery(api: Api) -> None:
    assert (await api.call("GET", "/api"))[1]["versions"] == ["v1"]
    groups = (await api.call("GET", "/apis"))[1]["groups"]
    assert {"batch", "sandbox.opensandbox.io"} <= {group["name"] for group in groups}
    found = (await api.call("GET", f"/apis/{GROUP}"))[1]["resources"]
    assert {BS, f"{BS}/status", "pools", "sandboxsnapshots"} <= {r["name"] for r in found}
    assert (await api.call("GET", "/version"))[1]["major"] == "1"
