"""The names that Bazel's embedded tools load from rules_proto: the native rules."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
ProtoInfo = ProtoInfo
