"""Unknown fields are refused with status 400, and each is named with the field that was probably meant."""

from __future__ import annotations

from system_harness import EXPORT_PATH, SystemHarness

from holdfast.systems.providers.local_text import compose_chapter_text
from holdfast.systems.request_context import sanitize_file_name


async def test_unknown_export_options_are_named(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document()
    options = {"pagesize": "A4", "margins": {"topp": 1}, "zoom": 2}
    body = {"documentId": document, "template": "modern", "options": options}
    response = await ann.post(EXPORT_PATH, body)
    assert response.status_code == 400
    errors = {error["field"]: error["message"] for error in response.json()["errors"]}
    assert set(errors) == {"template", "options.pagesize", "options.zoom", "options.margins.topp"}
    assert "did you mean pageSize?" in errors["options.pagesize"]
    assert "did you mean top?" in errors["options.margins.topp"]
    batch = {"documentIds": [document], "documentId": document}
    refused = await ann.post("/api/v1/export/batch", batch)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "documentId")
    added = await ann.post("/api/v1/export/documents", {"name": "x", "data": {"profile": {"name": "x"}}})
    assert (added.status_code, added.json()["errors"][0]["field"]) == (400, "name")


async def test_unknown_report_params_are_named(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    person = {"name": "Ana", "birth_date": "1990-01-01"}
    params = {"person1": person, "person2": {"name": "Bo"}, "system": ["western"]}
    response = await ann.post("/api/jobs/start", {"type": "nuclear_v2", "params": params})
    assert response.status_code == 400
    errors = {error["field"]: error["message"] for error in response.json()["errors"]}
    assert set(errors) == {"params.system", "params.person1.birth_date"}
    assert "did you mean birthDate?" in errors["params.person1.birth_date"]
    assert (await ann.get("/api/jobs")).json()["jobs"] == []


def test_long_titles_keep_their_extension() -> None:
    for title in ("x" * 196, "x" * 500, "a." + "y" * 300):
        name = sanitize_file_name(f"{title}.pdf")
        assert name.endswith(".pdf")
        assert len(name) <= 200
    assert len(sanitize_file_name("z" * 300)) == 200


def test_the_local_writer_says_years_as_people_do() -> None:
    for years, expected in ((None, "some years"), (0, "less than a year"), (1, "one year"), (7, "7 years")):
        facts = {} if years is None else {"years_apart": years}
        texts = [
            compose_chapter_text({"facts": facts, "person1": {"name": str(n)}, "person2": {"name": "b"}})
            for n in range(40)
        ]
        assert any(f"They are {expected} apart, which" in text for text in texts)
        assert not any("apart in years" in text for text in texts)
