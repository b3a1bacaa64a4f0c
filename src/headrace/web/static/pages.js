// Every page of the dashboard. A page registers itself when it is imported.

import "./pages/overview.js";
import "./pages/topics.js";
