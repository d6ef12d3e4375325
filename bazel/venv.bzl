"""The project's .venv as an external repository: one target a package, and the interpreter."""

def _venv_impl(ctx):
    # Asking for a path by label also makes Bazel watch the file.
    root = str(ctx.path(Label("//:requirements.lock")).dirname)
    script = ctx.path(Label("//bazel:venv_build.py"))
    python = root + "/.venv/bin/python"
    if not ctx.path(python).exists:
        fail("there is no .venv yet: run scripts/setup (`make bazel` does)")
    made = ctx.execute([python, "-I", script] + ctx.attr.packages)
    if made.return_code != 0:
        fail("the .venv lacks a package (scripts/setup mends it):\n" + made.stderr)

venv = repository_rule(
    implementation = _venv_impl,
    attrs = {"packages": attr.string_list(mandatory = True)},
    doc = """Targets `:<package>` (normalized name) for packages and all that they require, and
`:toolchain`, whose Python is the .venv's without its site-packages: a test can import the packages
that it declares and no others.""",
    local = True,
)
