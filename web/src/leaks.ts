// The page of a list of leaks. The document holds all of it; the script only folds entries and switches colours.
import { listenToFolds } from "./folds.ts";
import { listenToTheme } from "./theme.ts";

listenToTheme(() => {});
listenToFolds();
document.documentElement.dataset.ready = "yes";
