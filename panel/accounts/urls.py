"""Addresses of accounts, and of the activity page: the room below cannot ask for rights by itself."""

from django.urls import path

from panel.accounts import people_views, secret_views, views
from panel.accounts.access import can
from panel.accounts.guard import right
from panel.audit.views import activity, export_file

urlpatterns = [
    path("login", views.sign_in, name="login"),
    path("logout", views.sign_out, name="logout"),
    path("first-admin/<str:secret>", views.first_admin, name="first-admin"),
    path("invite/<str:secret>", views.invitation, name="invite"),
    path("new-password/<str:secret>", views.new_password, name="reset"),
    path("account", views.profile, name="profile"),
    path("account/look", views.look, name="profile-look"),
    path("account/sessions/end", views.sessions_end, name="sessions-end"),
    path("account/sessions/<uuid:number>/end", views.session_end, name="session-end"),
    path("account/password", views.password, name="profile-password"),
    path("account/tokens", views.token_create, name="token-create"),
    path("account/tokens/<int:pk>/revoke", views.token_revoke, name="token-revoke"),
    path("account/secrets", secret_views.secrets, name="secrets"),
    path("account/secrets/<int:pk>/remove", secret_views.secret_remove, name="secret-remove"),
    path("people/", people_views.people_list, name="people"),
    path("people/invite", people_views.invite, name="invite-new"),
    path("people/invitations/<int:pk>/again", people_views.invite_again, name="invite-again"),
    path("people/invitations/<int:pk>/revoke", people_views.invite_revoke, name="invite-revoke"),
    path("people/<int:pk>/", people_views.person, name="person"),
    path("people/<int:pk>/role", people_views.role, name="person-role"),
    path("people/<int:pk>/disable", people_views.disable, name="person-disable"),
    path("people/<int:pk>/enable", people_views.enable, name="person-enable"),
    path("people/<int:pk>/reset", people_views.reset, name="person-reset"),
    path("people/<int:pk>/sessions/end", people_views.sessions_end, name="person-sessions-end"),
    path("people/<int:pk>/tokens/<int:token_id>/revoke", people_views.token_revoke, name="person-token-revoke"),
    path(
        "activity",
        right("audit.view")(activity),
        {"may_export": lambda request: can(request.actor, "audit.export")},
        name="activity",
    ),
    path("activity/export.<str:form>", right("audit.export")(export_file), name="activity-export"),
]
