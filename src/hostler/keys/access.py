"""Key families for access: tokens, quotas, the audit log, and answered requests."""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.access import Answered, Audit, AuditFile, Project, Quota, Ticket, Token

TOKEN = Key("/hostler/v1/tokens/{digest}", Token)
TICKET = Key("/hostler/v1/tickets/{digest}", Ticket)
"""Attached to a lease."""
QUOTA = Key("/hostler/v1/quotas/{org}/{project}", Quota)
ORG_QUOTA = Key("/hostler/v1/org-quotas/{org}", Quota)
"""Quota of all projects of the org together."""
PROJECT = Key("/hostler/v1/projects/{org}/{project}", Project)
AUDIT = Key("/hostler/v1/audit/{day}/{write}", Audit)
"""`day` is `2026-11-15`; the entries of a day are in order of time."""
AUDIT_FILE = Key("/hostler/v1/audit-files/{day}/{place}", AuditFile)
"""`place` is the id of a folder with files of the audit log, one per day."""
ANSWERED = Key("/hostler/v1/requests/{user:name}/{life:int}/{request}", Answered)
"""Attached to a lease: a request can be repeated for a day. `life` is the revision in which the account was created."""
