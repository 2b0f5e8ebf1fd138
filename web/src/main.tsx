import { render } from "preact";
import { App } from "./app";
import { keepFocus } from "./focus";
import { resume } from "./session";
import "./theme.css";

keepFocus();
void resume();
const root = document.getElementById("app");
if (root) render(<App />, root);
