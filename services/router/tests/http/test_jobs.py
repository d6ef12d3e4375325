"""Jobs over HTTP."""

from __future__ import annotations

from services.router.tests.conftest import MODEL, Stage


async def test_jobs_and_models_show_the_precision_that_answers(stage: Stage) -> None:
    http = stage.http()
    served = (await http.post("/imp/v1/jobs", json={"model": MODEL})).json()
    unserved = (await http.post("/imp/v1/jobs", json={"model": "other"})).json()
    assert (served["precision"], unserved["precision"]) == ("float32", None)
    await stage.router_sees_jobs(2)
    listed = {job["id"]: job for job in (await http.get("/imp/v1/jobs")).json()["data"]}
    assert listed == {served["id"]: served, unserved["id"]: unserved}
    assert (await http.get(f"/imp/v1/jobs/{served['id']}")).json() == served
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert model["precision"] == "float32"
