"""What the fake hub tells of its repositories: the Hugging Face Hub's API and ModelScope's."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from tests.fakes.hub_files import File, Repo

COMMIT_DATE = "2026-01-02T03:04:05.000Z"


class Api:
    """A part of the server's handler."""

    hub: Any
    path: str
    _reply: Any
    _error: Any
    _token: Any
    _may: Any

    # --- the Hugging Face Hub's API -----------------------------------------------------------------------------------

    def _api(self, path: str, query: dict[str, str]) -> None:
        if path == "/api/whoami-v2":
            owner = self.hub.tokens.get(self._token())
            self._reply(200, {"name": owner, "type": "user"}) if owner else self._error(401, "")
        elif path == "/api/models":
            self._search(query)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
            self._tree(found[1], found[2], found[3] or "", query)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/refs", path):
            self._refs(found[1])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(found[1], found[2] or "main", query)
        else:
            self._error(404, "")

    def _search(self, query: dict[str, str]) -> None:
        wanted = query.get("search", "").lower()
        found = [repo for repo in self.hub.repos.values() if wanted in repo.name.lower() and not repo.private]
        if "author" in query:
            found = [repo for repo in found if repo.name.startswith(f"{query['author']}/")]
        found.sort(key=lambda repo: -int(repo.facts.get("downloads", 0)))
        self._reply(200, [self._described(repo) for repo in found[: int(query.get("limit") or 1000)]])

    @staticmethod
    def _described(repo: Repo) -> dict[str, Any]:
        licence = repo.facts.get("license")
        tags = [*repo.facts.get("tags", []), *([f"license:{licence}"] if licence else [])]
        return {
            "_id": repo.commit[:24],
            "id": repo.name,
            "modelId": repo.name,
            "author": repo.name.split("/")[0],
            "sha": repo.commit,
            "lastModified": COMMIT_DATE,
            "createdAt": COMMIT_DATE,
            "private": repo.private,
            "gated": repo.gated or False,
            "disabled": False,
            "downloads": repo.facts.get("downloads", 0),
            "likes": repo.facts.get("likes", 0),
            "tags": tags,
            "pipeline_tag": repo.facts.get("pipeline_tag", "text-generation"),
            "library_name": repo.facts.get("library_name", "transformers"),
            "cardData": {"license": licence} if licence else {},
            "siblings": [{"rfilename": path} for path in repo.files],
        }

    def _info(self, name: str, revision: str, query: dict[str, str]) -> None:
        repo = self._may_see(name)
        if repo is None:
            return
        if revision not in {*repo.refs, repo.commit}:
            self._error(404, "RevisionNotFound", "Invalid rev id")
            return
        found = self._described(repo)
        if query.get("blobs", "").lower() == "true":
            found["siblings"] = [
                {"rfilename": file.path, "size": file.size, "blobId": file.git, **self._lfs(file, "sha256")}
                for file in repo.files.values()
            ]
        self._reply(200, found)

    def _may_see(self, name: str) -> Repo | None:
        """What a gated repository is made of may be seen by everyone."""
        repo = self.hub.repos.get(name)
        if repo is not None and repo.gated and not repo.private and self._token() in {"", *self.hub.tokens}:
            return repo
        return self._may(name)

    @staticmethod
    def _lfs(file: File, key: str) -> dict[str, Any]:
        return {"lfs": {key: file.sha256, "size": file.size, "pointerSize": 134}} if file.lfs else {}

    def _tree(self, name: str, revision: str, below: str, query: dict[str, str]) -> None:
        repo = self._may_see(name)
        if repo is None:
            return
        if revision not in {*repo.refs, repo.commit}:
            self._error(404, "RevisionNotFound", "Invalid rev id")
            return
        files = [file for file in repo.files.values() if not below or file.path.startswith(f"{below}/")]
        deep = query.get("recursive", "").lower() in ("true", "1")
        entries: dict[str, dict[str, Any]] = {}
        for file in files:
            rest = file.path[len(below) + 1 if below else 0 :]
            if "/" in rest and not deep:
                folder = (f"{below}/" if below else "") + rest.split("/")[0]
                entries.setdefault(folder, {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
            else:
                entry = {"type": "file", "oid": file.git, "size": file.size, "path": file.path}
                entries[file.path] = entry | self._lfs(file, "oid")
        start = int(query.get("cursor") or 0)
        shown, headers = list(entries.values())[start : start + self.hub.page], {}
        if start + self.hub.page < len(entries):
            more = f"{self.hub.url}{urlsplit(self.path).path}?recursive={deep}&cursor={start + self.hub.page}"
            headers["Link"] = f'<{more}>; rel="next"'
        self._reply(200, shown, **headers)

    def _refs(self, name: str) -> None:
        repo = self._may_see(name)
        if repo is not None:
            branches = [
                {"name": ref, "ref": f"refs/heads/{ref}", "targetCommit": commit} for ref, commit in repo.refs.items()
            ]
            self._reply(200, {"branches": branches, "tags": [], "converts": []})

    # --- ModelScope's API ---------------------------------------------------------------------------------------------

    def _modelscope(self, path: str, query: dict[str, str]) -> None:
        found = re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)(/revisions|/repo/files)?", path)
        repo = self.hub.repos.get(found[1]) if found else None
        if found is None or repo is None:
            self._reply(404, {"Code": 10010205001, "Message": "not found", "Success": False, "Data": None})
            return
        if (repo.private or repo.gated) and self._token() not in repo.allowed:
            self._reply(403, {"Code": 10010205003, "Message": "no permission", "Success": False, "Data": None})
            return
        if found[2] == "/revisions":
            branches = [{"Revision": ref, "CreatedAt": 1767323045} for ref in repo.refs]
            self._fine({"RevisionMap": {"Branches": branches, "Tags": []}})
        elif found[2] == "/repo/files":
            self._fine({"Files": [self._entry(repo, file) for file in repo.files.values()]})
        else:
            self._fine(self._scoped(repo))

    def _modelscope_search(self, wanted: dict[str, Any]) -> None:
        text = str(wanted.get("Name") or wanted.get("Path") or "").lower()
        found = [
            self._scoped(repo) for repo in self.hub.repos.values() if text in repo.name.lower() and not repo.private
        ]
        start = (int(wanted.get("PageNumber") or 1) - 1) * int(wanted.get("PageSize") or 10)
        models = found[start : start + int(wanted.get("PageSize") or 10)]
        inner = {"Models": models, "TotalCount": len(found)}
        self._fine({"Model": inner, **inner} if "dolphin" in self.path else inner)

    def _fine(self, data: Any) -> None:
        self._reply(200, {"Code": 200, "Message": "success", "Success": True, "Data": data})

    @staticmethod
    def _scoped(repo: Repo) -> dict[str, Any]:
        owner, name = repo.name.split("/")
        return {
            "Id": int(repo.commit[:6], 16),
            "Path": owner,
            "Name": name,
            "License": repo.facts.get("license", ""),
            "Downloads": repo.facts.get("downloads", 0),
            "Stars": repo.facts.get("likes", 0),
            "Tasks": [{"Name": repo.facts.get("pipeline_tag", "text-generation")}],
            "StorageSize": sum(file.size for file in repo.files.values()),
            "LastUpdatedTime": 1767323045,
            "Revision": "master",
        }

    @staticmethod
    def _entry(repo: Repo, file: File) -> dict[str, Any]:
        return {
            "Name": file.path.rsplit("/", 1)[-1],
            "Path": file.path,
            "Type": "blob",
            "Size": file.size,
            "Sha256": file.sha256,
            "Revision": repo.commit,
            "IsLFS": file.lfs,
            "CommittedDate": 1767323045,
        }
