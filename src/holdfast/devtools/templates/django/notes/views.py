"""The web application: it stores a note and submits its job in one transaction."""

import json

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST
from tasks import count_words

from holdfast import Client
from notes.models import Note

client = Client()


@csrf_exempt
@require_POST
def add_note(request: HttpRequest) -> JsonResponse:
    text = str(json.loads(request.body)["text"])
    with transaction.atomic():
        note = Note.objects.create(text=text)
        job = client.blocking.submit(count_words(note.id), on=connection, key=f"note:{note.id}")
    return JsonResponse({"note": f"/notes/{note.id}", "job": str(job.id)}, status=202)


@require_GET
def show_note(_: HttpRequest, number: int) -> JsonResponse:
    note = get_object_or_404(Note, pk=number)
    return JsonResponse({"text": note.text, "words": note.words})
