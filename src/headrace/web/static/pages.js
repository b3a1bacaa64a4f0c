// Every page of the dashboard. A page registers itself when it is imported.

import "./pipelines/front.js"; // before others: the address without a path is its
import "./pages/overview.js";
import "./pages/topics.js";
import "./pages/topic.js";
import "./pages/messages.js";
import "./pages/groups.js";
import "./pages/cluster.js";
import "./pages/workers.js";
import "./pages/people.js";
import "./pipelines/list.js";
import "./pipelines/detail.js";
