// The page of a list of leaks: all of it is in the document, the script only folds and paints.
import { listenToFolds } from "./folds.js";
import { listenToTheme } from "./theme.js";

listenToTheme(() => {});
listenToFolds();
document.documentElement.dataset.ready = "yes";
