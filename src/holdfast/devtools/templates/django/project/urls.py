from django.urls import path
from notes import views

urlpatterns = [path("notes", views.add_note), path("notes/<int:number>", views.show_note)]
