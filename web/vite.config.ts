// How the page is built. build.py calls this, and puts the result into the Python package: src/hostler/site.
import { defineConfig } from "vite";

export default defineConfig({
  base: "/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/hostler/site",
    emptyOutDir: true,
    target: "es2022",
    // An image inside a stylesheet or a script would need a wider Content-Security-Policy than there is.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    license: { fileName: "licences.txt" },
  },
});
