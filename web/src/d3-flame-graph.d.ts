// The package describes its whole bundle; the page takes one module of it.
declare module "d3-flame-graph/src/flamegraph.js" {
  const flamegraph: () => any;
  export default flamegraph;
}
