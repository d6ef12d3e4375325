import json

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.error_line import ENGINE, MESSAGES, error_line


@given(st.text(min_size=1), st.sampled_from(sorted(MESSAGES)))
def test_it_is_one_line_of_ascii_json_that_names_its_request(custom_id: str, code: str) -> None:
    data = error_line("run-1", 7, custom_id, code)
    assert data.isascii() and b"\n" not in data
    assert data.decode().splitlines() == [data.decode()]
    assert json.loads(data) == {
        "id": "batch_req_1_7",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": MESSAGES[code]},
    }


def test_a_detail_is_added_to_the_sentence() -> None:
    error = json.loads(error_line("run-1", 1, "a", ENGINE, "the router went away"))["error"]
    assert error["message"] == "This request could not be executed: the router went away"
