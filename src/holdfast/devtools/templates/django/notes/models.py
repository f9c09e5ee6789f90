from django.db import models


class Note(models.Model):
    id = models.BigAutoField(primary_key=True)
    text = models.TextField()
    words = models.JSONField(null=True)
