"""How this repository builds: Python packages, pure cores, pytest files and protos."""

load("@rules_python//python:defs.bzl", "py_library", "py_test")

_PYTEST = ["@venv//:pytest", "@venv//:pytest-asyncio", "@venv//:pytest-timeout"]

def _inits(folder):
    """The __init__.py of this Bazel package and of every folder down to `folder`."""
    parts = folder.split("/")
    return ["/".join(parts[:depth] + ["__init__.py"]) for depth in range(len(parts) + 1)]

def _modules(folder, exclude = []):
    """Every other Python file under `folder`."""
    own = folder + "/__init__.py"
    return native.glob([folder + "/**/*.py"], exclude = [own] + exclude)

def _script_test(name, script, files, **attributes):
    """A test that runs a script of this folder on files of the calling package."""
    py_test(
        name = name,
        size = "small",
        srcs = ["//bazel:" + script],
        args = ["%s/%s" % (native.package_name(), file) for file in files],
        legacy_create_init = 0,
        main = "//bazel:" + script,
        **attributes
    )

def _library(name, srcs, deps, visibility):
    """A library, and a test that it can be imported with what it declares."""
    py_library(
        name = name,
        srcs = srcs,
        visibility = [visibility],
        deps = deps,
    )
    _script_test(
        name = name + "_imports",
        script = "import_main.py",
        files = srcs,
        deps = [":" + name],
    )

def python_package(name, deps = []):
    """The modules of this one folder, for all of the project."""
    _library(name, native.glob(["*.py"]), deps, "//:__subpackages__")

def core(name = "core", deps = []):
    """A service's pure core, in the folder `name`. Nobody but the service may use it."""
    visibility = "//%s:__subpackages__" % native.package_name()
    _library(name, _inits(name) + _modules(name), ["//services"] + deps, visibility)

def pytests(name, include = ["**/test_*.py"], helpers = None, data = [], deps = []):
    """A test for each file under the folder `name`, each named as the file without .py.

    Args:
      name: the tests' folder; it and those above it hold an __init__.py.
      include: patterns of test files under it.
      helpers: modules under it that the tests share; default: all that are no tests.
      data: files that they read.
      deps: what they and the helpers import.
    """
    tests = native.glob([name + "/" + pattern for pattern in include])
    if helpers == None:
        shared = _modules(name, exclude = [name + "/**/test_*.py"])
    else:
        shared = [name + "/" + helper for helper in helpers]
    py_library(
        name = name + "/helpers",
        testonly = True,
        srcs = _inits(name) + shared,
        data = data,
        deps = deps,
    )
    for test in tests:
        _script_test(
            name = test[:-len(".py")],
            script = "pytest_main.py",
            files = [test],
            data = [test, "//:pyproject.toml"],
            deps = [":%s/helpers" % name] + _PYTEST,
        )

def python_protos(name, imports):
    """Messages and gRPC stubs of protos; `:<name>` is all of them, `:sources` the protos.

    Each is a library named as the proto is without .proto, importable as from gen/, whose files are
    the same: `from impala.router.v1 import router_pb2`.

    Args:
      name: of the library of all.
      imports: each proto, and the libraries of the protos that it imports.
    """
    for proto, deps in imports.items():
        _python_proto(proto, deps)
    py_library(
        name = name,
        visibility = ["//:__subpackages__"],
        deps = [proto[:-len(".proto")] for proto in imports],
    )
    native.filegroup(
        name = "sources",
        srcs = list(imports),
        visibility = ["//:__subpackages__"],
    )

def _python_proto(proto, deps):
    name = proto[:-len(".proto")]
    outs = [name + "_pb2.py", name + "_pb2_grpc.py"]
    native.filegroup(
        name = name + "_sources",
        srcs = [proto] + [dep + "_sources" for dep in deps],
    )
    native.genrule(
        name = name + "_gen",
        srcs = [name + "_sources"],
        outs = outs,
        cmd = ("$(location //bazel:protoc) --proto_path={folder} --python_out=$(RULEDIR)" +
               " --grpc_python_out=$(RULEDIR) {proto}").format(
            folder = native.package_name(),
            proto = proto,
        ),
        tools = ["//bazel:protoc"],
    )
    py_library(
        name = name,
        srcs = outs,
        imports = ["."],
        visibility = ["//:__subpackages__"],
        deps = deps + ["@venv//:grpcio", "@venv//:protobuf"],
    )
