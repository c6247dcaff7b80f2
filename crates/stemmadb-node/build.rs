//! Links the library so that Node can load it.

fn main() {
    // On macOS, the symbols of Node are there only when it loads the library. Elsewhere they are looked up then anyway.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") {
        println!("cargo::rustc-cdylib-link-arg=-undefined");
        println!("cargo::rustc-cdylib-link-arg=dynamic_lookup");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
