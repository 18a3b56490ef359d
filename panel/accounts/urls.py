"""Addresses of accounts, and of the activity page: the room below cannot ask for rights by itself."""

from django.urls import path

from panel.accounts import views
from panel.accounts.guard import right
from panel.audit.views import activity

urlpatterns = [
    path("login", views.sign_in, name="login"),
    path("logout", views.sign_out, name="logout"),
    path("first-admin/<str:secret>", views.first_admin, name="first-admin"),
    path("account", views.profile, name="profile"),
    path("account/password", views.password, name="profile-password"),
    path("account/tokens", views.token_create, name="token-create"),
    path("account/tokens/<int:pk>/revoke", views.token_revoke, name="token-revoke"),
    path("activity", right("audit.view")(activity), name="activity"),
]
