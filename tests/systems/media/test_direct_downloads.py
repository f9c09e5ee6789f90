"""Direct downloads: a file of a website becomes a stored file that can be played."""

from __future__ import annotations

from media_harness import MediaHarness, MediaSite, media_url
from web_servers import WebServer


async def test_a_shared_link_becomes_a_stored_file(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    user = media_system.create_user()
    share = await user.share(media_url(website))
    assert (share["download_status"], share["progress"]["phase"]) == ("pending", "queued")
    async with media_system.run_worker():
        done = await user.wait_until_finished(share["id"])
    assert done["download_status"] == "completed", done
    assert done["media_type"] == "video"
    assert done["platform_data"]["originalMediaUrl"] == media_url(website)
    metadata = done["platform_data"]["downloadMetadata"]
    assert (metadata["size"], metadata["storageType"]) == (len(site.content), "local")
    assert done["progress"]["bytes"] == len(site.content)
    whole = await user.download(share["id"])
    assert whole.content == site.content
    assert whole.headers["content-type"] == "video/mp4"
    part = await user.download(share["id"], Range="bytes=1000-1999")
    assert (part.status_code, part.content) == (206, site.content[1000:2000])
    assert await media_system.count_stored_objects() == 1
