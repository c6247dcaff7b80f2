//! Has the programs linked with relative relocations in packed form, which makes them smaller by nearly 1 MB.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    // Known to the linkers of binutils 2.38 and LLVM 15; glibc 2.36 loads it.
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
