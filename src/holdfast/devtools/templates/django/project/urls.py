from django.urls import path
from notes import views

urlpatterns = [path("notes", views.add), path("notes/<int:number>", views.show)]
