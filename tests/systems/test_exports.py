"""The five playbook tests of the source, as written there."""

from __future__ import annotations

import io
import zipfile

from house import House


async def test_1_single_export(house: House) -> None:
    ann = house.user()
    document = await ann.document()
    job = await ann.export(document)
    async with house.db.connection() as connection:
        row = await connection.fetchrow("select * from export_jobs where id = $1", job)
    assert row is not None
    assert (row["status"], row["progress"], str(row["document_id"])) == ("pending", 0, document)
    async with house.worker():
        told = await ann.ended(job)
    assert told["status"] == "completed"
    assert told["progress"] == 100
    async with house.db.connection() as connection:
        row = await connection.fetchrow("select * from export_jobs where id = $1", job)
        history = await connection.fetchrow("select * from export_history where user_id = $1", ann.id)
    assert row is not None
    assert history is not None
    assert (row["status"], row["progress"], row["attempts"], row["page_count"]) == ("completed", 100, 1, 1)
    assert history["file_size"] == row["file_size"] > 10_000
    assert history["template_slug"] == "minimal"
    assert (history["expires_at"] - history["created_at"]).days == 7
    redirect = await ann.get(told["resultUrl"])
    assert redirect.status_code == 302
    pdf = await house.web.get(redirect.headers["location"])
    assert pdf.status_code == 200
    assert pdf.content.startswith(b"%PDF-")
    assert "Amara" in pdf.headers["content-disposition"]
