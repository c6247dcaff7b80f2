// The name of the native library for the platform that runs.
'use strict';

/** Whether this Linux has musl instead of glibc. */
function isMusl() {
  return process.platform === 'linux' && !process.report.getReport().header.glibcVersionRuntime;
}

/** The library's file name, such as `stemmadb.linux-x64-gnu.node`. */
function fileName() {
  const libc = process.platform === 'linux' ? (isMusl() ? '-musl' : '-gnu') : '';
  return `stemmadb.${process.platform}-${process.arch}${libc}.node`;
}

module.exports = { fileName };
