"""Keeps a list of books; every action has keys of its own and refuses those of the other actions like unknown ones."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

KEYS = {"list": {"sort"}, "add": {"title", "author"}, "find": {"title", "exact"}}
NEEDED = {"add": ["title", "author"], "find": ["title"], "list": []}


def refused(message):
    return ToolResult(success=False, error={"message": message})


class Books:
    name = "books"
    description = "Lists, adds and finds books."
    input_schema = {
        "type": "object",
        "properties": {
            "action": {"enum": ["list", "add", "find"]},
            "title": {"type": "string"},
            "author": {"type": "string"},
            "exact": {"type": "boolean"},
            "sort": {"enum": ["title", "author"]},
        },
        "required": ["action"],
    }

    def __init__(self):
        self.books = []

    async def execute(self, input):
        action = input.get("action")
        if not isinstance(action, str) or action not in KEYS:
            return refused("action: expected list, add or find")
        for key in sorted(set(input) - {"action"}):
            if key not in KEYS[action]:
                return refused(f"unknown key for {action}: {key}")
        for key in NEEDED[action]:
            if not isinstance(input.get(key), str):
                return refused(f"{key} is missing, or no text")
        if not isinstance(input.get("exact", False), bool) or input.get("sort", "title") not in ("title", "author"):
            return refused("exact is true or false, sort is title or author")
        if action == "add":
            self.books.append({"title": input["title"], "author": input["author"]})
            return ToolResult(output=len(self.books))
        if action == "find":
            title = input["title"]
            found = [b for b in self.books if b["title"] == title or (not input.get("exact") and title in b["title"])]
            return ToolResult(output=[dict(book) for book in found])
        order = input.get("sort", "title")
        return ToolResult(output=[dict(book) for book in sorted(self.books, key=lambda book: book[order])])


async def mount(coordinator, config):
    await coordinator.mount("tools", Books())
