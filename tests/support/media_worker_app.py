"""The tasks of the media system, for worker processes that tests kill."""

from holdfast.systems.media import lifespan, media_download, media_process, media_transcribe

__all__ = ["lifespan", "media_download", "media_process", "media_transcribe"]
