// Puts the page together from the model in the document and the state in the URL.
import { offerCopies } from "./copy.ts";
import { listenToFolds } from "./folds.ts";
import { nameCells } from "./format.ts";
import { modelOf } from "./model.ts";
import { Page } from "./page.ts";
import { state } from "./state.ts";

const model = modelOf(state.get().device);

nameCells(model.cells);
state.listen((_, changed) => {
  if (changed.has("device")) location.reload(); // the state of the other device is in the address already
});
listenToFolds();
offerCopies();
await new Page(model).start();
document.documentElement.dataset.ready = "yes";
performance.mark("memwatch-ready");
