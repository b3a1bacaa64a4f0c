// Every page of the dashboard. A page registers itself when it is imported.

import "./pages/overview.js";
import "./pages/topics.js";
import "./pages/topic.js";
import "./pages/messages.js";
import "./pages/groups.js";
import "./pages/cluster.js";
import "./pages/people.js";
