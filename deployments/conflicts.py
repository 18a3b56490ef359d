"""What was pressed on a page that is not true any more: nothing is done, and the answer says why (409)."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from panel.core.errors import Conflict


class Edited(Conflict):
    code = "deployment.edited"
    message: Any = _("Someone saved other settings while this page was open.")
    hint: Any = _("Look at the page again: it shows what is so now.")


class Moving(Conflict):
    code = "deployment.moving"
    message: Any = _("It is being started already.")
    hint: Any = _("Wait until this start has ended.")


class NoFix(Conflict):
    code = "fix.gone"
    message: Any = _("This fix is not offered any more. Nothing was done.")
    hint: Any = _("Something changed meanwhile. Look at the page again: it shows what helps now.")


class NotHere(Conflict):
    code = "fix.elsewhere"
    message: Any = _("Berth cannot do this by itself.")
    hint: Any = _("The page of the deployment says where it is done. Then press Start.")
