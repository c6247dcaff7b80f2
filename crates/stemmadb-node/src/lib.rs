//! The native part of the Node package `stemmadb`: calls of the package become jobs of threads, and their results JSON
//! text.
//!
//! What JavaScript can say as well is JavaScript, in `lib`: the classes that programs see, promises, iterators, errors.

mod arguments;
mod calls;
mod cursor;
mod handle;
mod operations;
mod pool;
mod text;
