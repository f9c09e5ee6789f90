"""The local voice: eSpeak NG, robotic but clear, in many languages, without network or key.

The library speaks one text at a time in a process, so there is a lock around it; encoding happens outside.
It comes as an extra and is loaded when it is first needed: eSpeak NG is licensed under the GPL.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import threading
from typing import Any

from holdfast.errors import RefusedError
from holdfast.systems.providers import ProviderError, Sound
from holdfast.systems.providers.mp3 import encode, measure
from holdfast.systems.providers.speech import pieces

SYNCHRONOUS = 2  # espeak's AUDIO_OUTPUT_SYNCHRONOUS: samples come to the callback, espeak_Synth waits
UTF8 = 1  # and neither SSML nor phonemes: text is read, whatever it looks like
CHARACTERS = 1
RATE_PARAMETER, PITCH_PARAMETER = 1, 3
WORDS_A_MINUTE = 165
_Callback: Any = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_lock = threading.Lock()
_loaded: dict[str, Any] = {}


class LocalVoice:
    key = "speech:local"

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def speak(self, text: str, language: str) -> Sound:
        samples: list[bytes] = []
        rate = 0
        # One text after the other: the first is finished early, and all of them no later.
        async with self._turn:
            for piece in pieces(text, 1500):  # between pieces a cancelled task can stop
                part, rate = await asyncio.to_thread(synthesize, piece, language)
                samples.append(part)
        if not any(samples):
            raise ProviderError("There was nothing to say.")
        mp3 = await asyncio.to_thread(encode, b"".join(samples), rate)
        measured = measure(mp3)
        if measured is None:
            raise ProviderError("There was nothing to say.")
        return Sound(mp3, measured.seconds, measured.bit_rate, f"eSpeak NG ({language})")

    async def close(self) -> None:
        pass


def synthesize(text: str, language: str) -> tuple[bytes, int]:
    """16-bit mono samples and their rate."""
    heard: list[bytes] = []

    def collect(samples: Any, count: int, _: object) -> int:
        if samples and count > 0:
            heard.append(ctypes.string_at(samples, count * 2))
        return 0

    callback = _Callback(collect)
    with _lock:
        library, rate = _library()
        for voice in (language, language.partition("-")[0], "en"):
            if library.espeak_SetVoiceByName(voice.lower().encode("ascii", "ignore")) == 0:
                break
        library.espeak_SetParameter(RATE_PARAMETER, WORDS_A_MINUTE, 0)
        library.espeak_SetSynthCallback(callback)
        encoded = text.replace("\0", "").encode("utf-8", "replace")
        failed = library.espeak_Synth(encoded, len(encoded) + 1, 0, CHARACTERS, 0, UTF8, None, None)
        if failed:
            raise ProviderError(f"The local voice failed ({failed}).")
        library.espeak_Synchronize()
    return b"".join(heard), rate


def _library() -> tuple[Any, int]:
    if not _loaded:
        try:
            loader = importlib.import_module("espeakng_loader")
        except ImportError:
            raise RefusedError(
                "The local voice is not installed.", fix="Install holdfast[speech], or set speech_url."
            ) from None
        library = ctypes.CDLL(str(loader.get_library_path()))
        rate = library.espeak_Initialize(SYNCHRONOUS, 0, str(loader.get_data_path()).encode(), 0)
        if rate <= 0:
            raise RefusedError("The local voice cannot start.", fix="Set speech_url to a speech server.")
        library.espeak_Synth.argtypes = [
            ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint,
            ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip
        library.espeak_SetSynthCallback.argtypes = [_Callback]
        library.espeak_SetVoiceByName.argtypes = [ctypes.c_char_p]
        _loaded.update(library=library, rate=rate)
    return _loaded["library"], _loaded["rate"]
