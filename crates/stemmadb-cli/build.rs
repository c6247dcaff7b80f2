//! Has the programs linked with relative relocations in packed form, which makes them smaller by nearly 1 MB, and
//! release builds linked without symbols.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    // Known to the linkers of binutils 2.38 and LLVM 15; glibc 2.36 and musl 1.2.4 load it. The standard library brings
    // its own musl.
    if ["gnu", "musl"].contains(&variable("CARGO_CFG_TARGET_ENV").as_str()) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // Cargo ignores `strip` for a package with an `opt-level` of its own.
    if variable("OPT_LEVEL") == "s" && variable("DEBUG") == "false" {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
    }
}
