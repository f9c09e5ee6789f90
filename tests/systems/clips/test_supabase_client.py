"""The queue calls of the source with supabase-js: its three edge functions run against the API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clips_harness import ClipsHarness
from node_programs import run_supabase_js
from system_harness import SERVICE_KEY

SCRIPT = """
const { createClient } = require('@supabase/supabase-js')
const [url, key, record] = process.argv.slice(2)
const supabase = createClient(url, key)
async function rpc(name, args) {
  const { data, error } = await supabase.rpc(name, args)
  if (error) throw new Error(`${name}: ${JSON.stringify(error)}`)
  return data
}
async function main() {
  const out = {}
  // ingest-router
  out.sent = await rpc('pgmq_send', { queue_name: 'scrape_jobs', msg: { record: JSON.parse(record) } })
  // scrape-worker
  out.scrape = await rpc('pgmq_read', { queue_name: 'scrape_jobs', vt: 120, qty: 5 })
  out.next = await rpc('pgmq_send', { queue_name: 'enrich_jobs', msg: { video_id: JSON.parse(record).id } })
  out.archived = []
  for (const message of out.scrape) {
    out.archived.push(await rpc('pgmq_archive', { queue_name: 'scrape_jobs', msg_id: message.msg_id }))
  }
  // enrich-worker
  out.enrich = await rpc('pgmq_read', { queue_name: 'enrich_jobs', vt: 300, qty: 1 })
  const one = { queue_name: 'enrich_jobs', msg_id: out.enrich[0].msg_id }
  out.extended = await rpc('pgmq_set_vt', { ...one, vt: 300 })
  out.deleted = await rpc('pgmq_delete', one)
  console.log(JSON.stringify(out))
  process.exit(0)
}
main().catch((problem) => { console.error(problem); process.exit(1) })
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_queue_calls_of_the_source(system: ClipsHarness, tmp_path: Path) -> None:
    ann = system.create_user()
    clip = await system.add(ann, "https://youtu.be/x")
    record = json.dumps({"id": clip["id"], "video_url": clip["video_url"]})
    answers = await run_supabase_js(SCRIPT, tmp_path, system.url, SERVICE_KEY, record)
    assert (answers["sent"], answers["next"]) == ([2], [1])  # the first message is that of the trigger
    assert [message["read_ct"] for message in answers["scrape"]] == [1, 1]
    assert answers["scrape"][0]["message"]["video_id"] == clip["id"]
    assert (answers["archived"], answers["deleted"]) == ([True, True], True)
    assert answers["extended"][0]["msg_id"] == answers["enrich"][0]["msg_id"]
    archived = await system.fetch("select msg_id from pgmq.a_scrape_jobs order by 1")
    assert [row[0] for row in archived] == [1, 2]
