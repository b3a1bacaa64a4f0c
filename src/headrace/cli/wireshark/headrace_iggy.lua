-- Iggy's binary protocol: classic framing (dialects A, B1, B2) and the framing of dialect C.
-- Layout: docs/protocols/iggy.md. Bodies are read by the generated description, as far as it goes.

local folder = (__DIR__ or ""):gsub("[/\\]*$", "/")
local tables = dofile(folder .. "headrace_tables.lua").iggy
local common = dofile(folder .. "headrace_common.lua")

local HEAD_BYTES, C_HEAD_BYTES, C_SIZE_END = 8, 256, 64
local FRAME_BYTES_MAX, RESPONSE_BYTES_MAX = 64 * 1024 * 1024, 256 * 1024 * 1024
local REQUEST, REPLY, EVICTION = 5, 8, 13 -- commands of dialect C's header
local REGISTER, READ = 1, 2 -- operations of it
local SEND, POLL, PING = 101, 100, 1
local FIRST_REQUESTS = 4 -- among which a PING came soon: a capture may have no clock to go by
local LOGINS = { [1] = true, [38] = true, [44] = true } -- what a connection usually begins with
local MESSAGES_MAX = 1000 -- shown of one frame
local INDEX_BYTES = 16

local proto = Proto("iggy", "Apache Iggy")
local names = {}
for code, row in pairs(tables.commands) do
  names[code] = row.name
end

local f = {
  length = ProtoField.uint32("iggy.length", "Length"),
  code = ProtoField.uint32("iggy.code", "Command", base.DEC, names),
  status = ProtoField.uint32("iggy.status", "Status", base.DEC, tables.status),
  dialect = ProtoField.string("iggy.dialect", "Dialect"),
  is_response = ProtoField.bool("iggy.response", "Response"),
  body = ProtoField.bytes("iggy.body", "Body"),
  rest = ProtoField.bytes("iggy.rest", "Rest of the body"),
  size = ProtoField.uint32("iggy.c.size", "Size"),
  command = ProtoField.uint8("iggy.c.command", "Kind of frame", base.DEC,
    { [REQUEST] = "request", [REPLY] = "reply", [EVICTION] = "eviction" }),
  client = ProtoField.bytes("iggy.c.client", "Client"),
  number = ProtoField.uint64("iggy.c.number", "Request number"),
  operation = ProtoField.uint8("iggy.c.operation", "Operation"),
  session = ProtoField.uint64("iggy.c.session", "Session"),
  eviction = ProtoField.uint8("iggy.c.eviction", "Reason", base.DEC, tables.evictions),
  consumer_kind = ProtoField.uint8("iggy.consumer.kind", "Consumer kind", base.DEC,
    tables.consumers),
  strategy_kind = ProtoField.uint8("iggy.strategy.kind", "Strategy", base.DEC, tables.strategies),
  strategy_value = ProtoField.uint64("iggy.strategy.value", "Strategy value"),
  partitioning = ProtoField.uint8("iggy.partitioning.kind", "Partitioning", base.DEC,
    tables.partitionings),
  partitioning_value = ProtoField.bytes("iggy.partitioning.value", "Partitioning value"),
  messages = ProtoField.uint32("iggy.messages", "Messages"),
  message = ProtoField.bytes("iggy.message", "Message"),
  message_id = ProtoField.bytes("iggy.message.id", "Id"),
  message_offset = ProtoField.uint64("iggy.message.offset", "Offset"),
  message_timestamp = ProtoField.uint64("iggy.message.timestamp_us", "Timestamp (µs)"),
  message_headers = ProtoField.bytes("iggy.message.headers", "User headers"),
  message_payload = ProtoField.bytes("iggy.message.payload", "Payload"),
}
local matching = common.matching_fields("iggy")

-- A field has one type under one name, whatever its width is in one command or another.
local TEXT = { str8 = true, str32 = true, reference = true, consumer = true }
local shown = {}
local function declare(name, kind)
  if kind ~= "strategy" and shown[name] == nil then
    local make = ProtoField.uint64
    if TEXT[kind] then
      make = ProtoField.string
    elseif kind == "f32" then
      make = ProtoField.float
    elseif kind == "flag" then
      make = ProtoField.bool
    end
    shown[name] = make("iggy." .. name, name)
  end
end
for _, row in pairs(tables.commands) do
  for _, side in ipairs({ "request", "response" }) do
    for _, field in ipairs(row[side]) do
      declare(field[1], field[2])
    end
  end
end
declare("stream", "reference")
declare("topic", "reference")
declare("partition", "partition")
declare("current_offset", "u64")

local all = common.values(f)
for _, list in ipairs({ common.values(matching), common.values(shown) }) do
  for _, field in ipairs(list) do
    all[#all + 1] = field
  end
end
proto.fields = all

local e = {
  malformed = ProtoExpert.new("iggy.malformed", "Malformed frame", expert.group.MALFORMED,
    expert.severity.ERROR),
  unknown = ProtoExpert.new("iggy.unknown_command", "Unknown command", expert.group.UNDECODED,
    expert.severity.WARN),
  unasked = ProtoExpert.new("iggy.unasked", "Response without a request", expert.group.SEQUENCE,
    expert.severity.WARN),
  refused = ProtoExpert.new("iggy.refused", "The request was refused", expert.group.RESPONSE_CODE,
    expert.severity.NOTE),
}
proto.experts = common.values(e)
proto.prefs.ports = Pref.range("TCP ports", "8090", "Of brokers.", 65535)
proto.prefs.dialect = Pref.enum("Dialect", 2,
  "Of connections that do not show theirs.", { { 1, "A", 0 }, { 2, "B1", 1 }, { 3, "B2", 2 } }, false)
local DIALECTS = { [0] = "A", [1] = "B1", [2] = "B2" }

local connections = {}
function proto.init()
  connections = {}
end

-- Bodies -----------------------------------------------------------------------------------------

local readers = {}

local function number_of(width)
  return function(body, at, name, tree)
    if at + width > body:len() then
      return nil
    end
    tree:add_le(shown[name], body(at, width))
    return at + width
  end
end
readers.u8, readers.flag = number_of(1), number_of(1)
readers.u32, readers.id, readers.partition = number_of(4), number_of(4), number_of(4)
readers.u64, readers.f32 = number_of(8), number_of(4)

local function text_of(width)
  return function(body, at, name, tree, _, found)
    if at + width > body:len() then
      return nil
    end
    local length = body(at, width):le_uint()
    if length > body:len() - at - width then
      return nil
    end
    local range = body(at, width + length)
    if common.is_secret(name) then
      tree:add(range, name .. ": •••")
    else
      local text = length > 0 and body(at + width, length):string(ENC_UTF_8) or ""
      found[name] = text
      tree:add(shown[name], range, text)
    end
    return at + width + length
  end
end
readers.str8, readers.str32 = text_of(1), text_of(4)

-- A name, or a number in four bytes.
function readers.reference(body, at, name, tree, _, found)
  if at + 2 > body:len() then
    return nil
  end
  local kind, length = body(at, 1):uint(), body(at + 1, 1):uint()
  if length > body:len() - at - 2 or (kind == 1 and length ~= 4) or length == 0 then
    return nil
  end
  local value = body(at + 2, length)
  local text = kind == 1 and tostring(value:le_uint()) or value:string(ENC_UTF_8)
  found[name] = text
  tree:add(shown[name], body(at, 2 + length), text)
  return at + 2 + length
end

function readers.consumer(body, at, name, tree, dialect, found)
  if at + 1 > body:len() then
    return nil
  end
  tree:add(f.consumer_kind, body(at, 1))
  return readers.reference(body, at + 1, name, tree, dialect, found)
end

function readers.strategy(body, at, _, tree)
  if at + 9 > body:len() then
    return nil
  end
  tree:add(f.strategy_kind, body(at, 1))
  tree:add_le(f.strategy_value, body(at + 1, 8))
  return at + 9
end

function readers.requested_id(body, at, name, tree, dialect)
  return dialect == "A" and readers.u32(body, at, name, tree) or (dialect ~= "A" and at or nil)
end

-- From dialect B1 on a byte says whether there is one.
function readers.optional_partition(body, at, name, tree, dialect)
  if dialect == "A" then
    return readers.u32(body, at, name, tree)
  end
  if at + 5 > body:len() then
    return nil
  end
  if body(at, 1):uint() == 1 then
    tree:add_le(shown[name], body(at + 1, 4))
  end
  return at + 5
end

function readers.classic_u8(body, at, name, tree, dialect)
  return dialect == "C" and at or readers.u8(body, at, name, tree)
end

function readers.classic_u64(body, at, name, tree, dialect)
  return dialect == "C" and at or readers.u64(body, at, name, tree)
end

-- Shows the fields in their order. Gives what texts said, and where the known ones end (nil: cut).
local function show_fields(body, layout, tree, dialect)
  local at, found = 0, {}
  for _, field in ipairs(layout) do
    at = readers[field[2]](body, at, field[1], tree, dialect, found)
    if at == nil then
      return found, nil
    end
  end
  return found, at
end

-- Messages ---------------------------------------------------------------------------------------

local function show_message(body, at, head_bytes, tree)
  if at + head_bytes > body:len() then
    return nil
  end
  local headers, payload = body(at + 48, 4):le_uint(), body(at + 52, 4):le_uint()
  local bytes = head_bytes + headers + payload
  if bytes > body:len() - at then
    return nil
  end
  local branch = tree:add(f.message, body(at, bytes))
  branch:set_text(string.format("Message of %d bytes", payload))
  branch:add(f.message_id, body(at + 8, 16))
  branch:add_le(f.message_offset, body(at + 24, 8))
  branch:add_le(f.message_timestamp, body(at + 32, 8))
  if payload > 0 then
    branch:add(f.message_payload, body(at + head_bytes, payload))
  end
  if headers > 0 then
    branch:add(f.message_headers, body(at + head_bytes + payload, headers))
  end
  return at + bytes
end

local function show_messages(body, at, count, head_bytes, tree)
  for _ = 1, math.min(count, MESSAGES_MAX) do
    at = show_message(body, at, head_bytes, tree)
    if at == nil then
      return false
    end
  end
  return true
end

-- Where the messages of a classic SEND begin, how many they are and how large their headers are.
local function send_shape(body)
  if body:len() < 4 then
    return nil
  end
  local metadata = body(0, 4):le_uint()
  if metadata < 4 or 4 + metadata > body:len() then
    return nil
  end
  local count = body(metadata, 4):le_uint()
  local area = 4 + metadata + count * INDEX_BYTES
  if area > body:len() then
    return nil
  end
  local head_bytes
  if count > 0 and body:len() - area >= 56 then
    local index = 4 + metadata
    local stop = body(index + 4, 4):le_uint()
    if stop == 0 then
      stop = body(index + 8, 4):le_uint()
    end
    head_bytes = stop - body(area + 48, 4):le_uint() - body(area + 52, 4):le_uint()
  end
  return area, count, head_bytes
end

local function show_send(body, tree, dialect)
  local found = {}
  local at = body:len() >= 4 and readers.reference(body, 4, "stream", tree, dialect, found)
  at = at and readers.reference(body, at, "topic", tree, dialect, found)
  if not at or at + 2 > body:len() or body(at + 1, 1):uint() > body:len() - at - 2 then
    return found, false
  end
  tree:add(f.partitioning, body(at, 1))
  local length = body(at + 1, 1):uint()
  if length > 0 then
    tree:add(f.partitioning_value, body(at + 2, length))
  end
  at = at + 2 + length
  if at + 4 > body:len() then
    return found, false
  end
  tree:add_le(f.messages, body(at, 4))
  if dialect == "C" then -- one batch follows, its layout is another
    return found, true
  end
  local area, count, head_bytes = send_shape(body)
  if area == nil then
    return found, false
  end
  if count == 0 then
    return found, true
  end
  if head_bytes ~= 64 and head_bytes ~= 56 then
    return found, false
  end
  return found, show_messages(body, area, count, head_bytes, tree)
end

local function show_poll_reply(body, tree, dialect)
  if body:len() < 16 then
    return false
  end
  tree:add_le(shown.partition, body(0, 4))
  tree:add_le(shown.current_offset, body(4, 8))
  tree:add_le(f.messages, body(12, 4))
  if dialect == "C" then
    return true
  end
  return show_messages(body, 16, body(12, 4):le_uint(), dialect == "B2" and 64 or 56, tree)
end

-- Dialects ---------------------------------------------------------------------------------------

-- As src/headrace/wire/iggy/detection.py and connection.py: a request shows by its length in which
-- dialects it can be written. Replies show nothing, so it is kept for the connection.

local A, NARROW, B, WIDE = { "A" }, { "A", "B1" }, { "B1", "B2" }, { "B2" }
local CLUSTER_METADATA, FIRST_EXTENSION, CREATE_TOPIC, PUBLISHED_NAME_AT = 12, 9000, 302, 8

-- Where `count` identifiers end.
local function after_identifiers(body, at, count)
  for _ = 1, count do
    if at + 2 > body:len() then
      return nil
    end
    at = at + 2 + body(at + 1, 1):uint()
  end
  return at <= body:len() and at or nil
end

local function by_consumer(code, body)
  local at = after_identifiers(body, 1, 3)
  return at and ({ [0] = A, [1] = B })[body:len() - at - tables.consumer_tails[code]]
end

local function by_name(code, body)
  local shape = tables.named[code]
  local at = after_identifiers(body, 0, shape[1])
  if at == nil then
    return nil
  end
  local left, fits = body:len() - at, {}
  local function ends_with_name(before)
    return left > before and left == before + 1 + body(at + before, 1):uint()
  end
  if ends_with_name(shape[2]) then
    fits[#fits + 1] = B
  end
  if ends_with_name(shape[2] + 4) then
    fits[#fits + 1] = A
  end
  if code == CREATE_TOPIC and left > PUBLISHED_NAME_AT then
    local rest = left - body(at + PUBLISHED_NAME_AT, 1):uint()
    if rest == 14 or rest == 22 then
      fits[#fits + 1] = A
    end
  end
  return #fits == 1 and fits[1] or nil
end

local function candidates(code, body)
  if code == SEND then
    local _, _, head_bytes = send_shape(body)
    return ({ [64] = WIDE, [56] = NARROW })[head_bytes or 0]
  elseif tables.consumer_tails[code] then
    return by_consumer(code, body)
  elseif tables.named[code] then
    return by_name(code, body)
  end
end

local function hint(code)
  if code >= FIRST_EXTENSION then
    return WIDE
  end
  return code == CLUSTER_METADATA and B or nil
end

local function common_to(one, other)
  local both = {}
  for _, dialect in ipairs(one) do
    for _, each in ipairs(other) do
      if dialect == each then
        both[#both + 1] = dialect
      end
    end
  end
  return both
end

-- Of the dialects still possible the one assumed so far stays, else the default, else the newest.
local function settle(connection)
  for _, wanted in ipairs({ connection.dialect, DIALECTS[proto.prefs.dialect], "B2", "B1", "A" }) do
    for _, dialect in ipairs(connection.possible) do
      if dialect == wanted then
        connection.dialect = wanted
        return
      end
    end
  end
end

-- The Rust crate sends a PING when it is connected, other SDKs first after five seconds; a version
-- means one thing in the crate's mouth and another in theirs.
local function on_ping(connection)
  if connection.requests <= FIRST_REQUESTS then
    connection.pinged = true
    if connection.release and #connection.possible > 1 then
      connection.dialect, connection.possible = connection.crate, { connection.crate }
    end
  end
end

local function on_poll(connection)
  if connection.release and #connection.possible > 1 then
    connection.dialect, connection.possible = connection.release, { connection.release }
  end
end

local function notice(connection, code, body)
  connection.dialect = connection.dialect or DIALECTS[proto.prefs.dialect]
  connection.possible = connection.possible or { "A", "B1", "B2" }
  connection.requests = (connection.requests or 0) + 1
  if code == PING then
    on_ping(connection)
    return
  end
  local shown_by, usual = candidates(code, body), hint(code)
  if shown_by then
    local both = common_to(connection.possible, shown_by)
    connection.possible = #both > 0 and both or shown_by
  elseif usual then
    local both = common_to(connection.possible, usual)
    connection.possible = #both > 0 and both or connection.possible
  end
  settle(connection)
  if code == POLL then
    on_poll(connection)
  end
end

local function on_version(connection, version)
  local minor = version:match("^%d+%.%d+") or ""
  local crate, release = tables.versions[minor], tables.releases[minor]
  local dialect = crate or release
  if dialect == nil then
    return
  end
  connection.dialect, connection.possible, connection.release = dialect, { dialect }, nil
  if crate and release and crate ~= release and not connection.pinged then
    connection.crate, connection.release = crate, release
    connection.possible = { crate, release }
  end
end

-- Frames -----------------------------------------------------------------------------------------

local function show_request_body(body, code, tree, dialect)
  if code == SEND then
    return show_send(body, tree, dialect)
  end
  local row = tables.commands[code]
  if row == nil or #row.request == 0 then
    return {}, true
  end
  local found, at = show_fields(body, row.request, tree, dialect)
  if at and at < body:len() then
    tree:add(f.rest, body(at))
  end
  return found, at ~= nil
end

local function show_reply_body(body, code, tree, dialect)
  if code == POLL then
    return show_poll_reply(body, tree, dialect)
  end
  local row = code and tables.commands[code]
  if row and #row.response > 0 then
    local _, at = show_fields(body, row.response, tree, dialect)
    return at ~= nil
  end
  return true
end

local function place_of(found)
  if found.stream and found.topic then
    return " " .. found.stream .. "/" .. found.topic
  end
  return (found.stream or found.name or found.username) and
    " " .. (found.stream or found.name or found.username) or ""
end

local function show_request(tvb, pinfo, root, at, bytes, connection)
  local code = tvb(at + 4, 4):le_uint()
  local row = tables.commands[code]
  local name = row and row.name or ("command " .. code)
  local tree = root:add(proto, tvb(at, bytes))
  tree:add_le(f.length, tvb(at, 4))
  local command = tree:add_le(f.code, tvb(at + 4, 4))
  if row == nil then
    command:add_proto_expert_info(e.unknown)
  end
  local body = bytes > HEAD_BYTES and tvb(at + HEAD_BYTES, bytes - HEAD_BYTES)
  if not pinfo.visited then
    notice(connection, code, body or tvb(at, 0))
  end
  local dialect = connection.dialect or DIALECTS[proto.prefs.dialect] or "B2"
  if pinfo.visited then -- what was known then, not what came to be known later
    dialect = common.recall(connection, pinfo).dialect or dialect
  end
  local found, whole = {}, true
  if body then
    local branch = tree:add(f.body, body)
    found, whole = show_request_body(body, code, branch, dialect)
  elseif row and #row.request > 0 then
    whole = false
  end
  if found.version and not pinfo.visited then
    on_version(connection, found.version)
    dialect = connection.dialect or dialect
  end
  local record, count = common.remembered(connection, pinfo, function()
    return common.ask(connection, pinfo, { code = code, name = name, dialect = dialect })
  end)
  tree:add(f.dialect, tvb(at, bytes), record.dialect or dialect):set_generated()
  common.show_matching(tree, matching, record, pinfo)
  tree:set_text("Iggy " .. name .. place_of(found))
  common.tell(pinfo, "Iggy", count, name .. place_of(found))
  if not whole then
    tree:add_proto_expert_info(e.malformed, "body is no " .. name)
  end
end

local function show_outcome(tree, status, record)
  if record.asked == nil then
    tree:add_proto_expert_info(e.unasked)
  end
  if status ~= 0 then
    tree:add_proto_expert_info(e.refused, "Refused: " .. (tables.status[status] or status))
  end
end

local function show_reply(tvb, pinfo, root, at, bytes, connection)
  local status = tvb(at, 4):le_uint()
  local record, count = common.remembered(connection, pinfo, function()
    return common.answer(connection, pinfo)
  end)
  local asked = record.asked or { name = "?" }
  local title = asked.name .. " response"
  if status ~= 0 then
    title = title .. " " .. (tables.status[status] or status)
  end
  common.tell(pinfo, "Iggy", count, title)
  local tree = root:add(proto, tvb(at, bytes), "Iggy " .. title)
  tree:add(f.is_response, tvb(at, bytes), true):set_generated()
  tree:add_le(f.status, tvb(at, 4))
  tree:add_le(f.length, tvb(at + 4, 4))
  if asked.code then
    tree:add(f.code, tvb(at, bytes), asked.code):set_generated()
    tree:add(f.dialect, tvb(at, bytes), asked.dialect):set_generated()
  end
  common.show_matching(tree, matching, record, pinfo)
  show_outcome(tree, status, record)
  if bytes > HEAD_BYTES then
    local body = tvb(at + HEAD_BYTES, bytes - HEAD_BYTES)
    local branch = tree:add(f.body, body)
    if status == 0 and not show_reply_body(body, asked.code, branch, asked.dialect) then
      branch:add_proto_expert_info(e.malformed, "body is no answer to " .. asked.name)
    end
  end
end

-- Dialect C --------------------------------------------------------------------------------------

local function code_of(tvb, at, bytes)
  local operation = tvb(at + 176, 1):uint()
  if operation == READ then
    return tvb(at + 196, 4):le_uint()
  elseif operation == REGISTER then
    return 40 -- or by token, which only the body tells
  end
  return tables.operations[operation]
end

local function show_c_request(tvb, pinfo, root, at, bytes, connection)
  local code = code_of(tvb, at, bytes)
  local row = code and tables.commands[code]
  local name = row and row.name or "operation " .. tvb(at + 176, 1):uint()
  connection.dialect = "C"
  local number = tostring(tvb(at + 168, 8):le_uint64())
  local record, count = common.remembered(connection, pinfo, function()
    return common.ask_as(connection, pinfo, number, { code = code, name = name, dialect = "C" })
  end)
  local tree = root:add(proto, tvb(at, bytes))
  tree:add_le(f.size, tvb(at + 48, 4))
  tree:add(f.command, tvb(at + 60, 1))
  tree:add(f.client, tvb(at + 128, 16))
  tree:add_le(f.number, tvb(at + 168, 8))
  local operation = tree:add(f.operation, tvb(at + 176, 1))
  tree:add_le(f.session, tvb(at + 184, 8))
  tree:add(f.dialect, tvb(at, bytes), "C"):set_generated()
  if code then
    tree:add(f.code, tvb(at + 176, 1), code):set_generated()
  end
  if row == nil then
    operation:add_proto_expert_info(e.unknown)
  end
  common.show_matching(tree, matching, record, pinfo)
  local found = {}
  -- The body of a login may be that of the other one, which begins alike but is shorter.
  if bytes > C_HEAD_BYTES then
    local body = tvb(at + C_HEAD_BYTES, bytes - C_HEAD_BYTES)
    local branch, whole = tree:add(f.body, body), true
    if code and code ~= 40 then
      found, whole = show_request_body(body, code, branch, "C")
    end
    if not whole then
      branch:add_proto_expert_info(e.malformed, "body is no " .. name)
    end
  end
  tree:set_text("Iggy " .. name .. place_of(found))
  common.tell(pinfo, "Iggy", count, name .. place_of(found))
end

local function show_c_reply(tvb, pinfo, root, at, bytes, connection)
  local command = tvb(at + 60, 1):uint()
  local tree = root:add(proto, tvb(at, bytes))
  tree:add_le(f.size, tvb(at + 48, 4))
  tree:add(f.command, tvb(at + 60, 1))
  tree:add(f.dialect, tvb(at, bytes), "C"):set_generated()
  tree:add(f.is_response, tvb(at, bytes), true):set_generated()
  if command ~= REPLY then
    local _, count = common.remembered(connection, pinfo, function() return {} end)
    tree:add(f.client, tvb(at + 128, 16))
    tree:add(f.eviction, tvb(at + 255, 1))
    tree:set_text("Iggy eviction")
    return common.tell(pinfo, "Iggy", count, "eviction")
  end
  local number, operation = tostring(tvb(at + 200, 8):le_uint64()), tvb(at + 208, 1):uint()
  local record, count = common.remembered(connection, pinfo, function()
    return common.answer_to(connection, pinfo, number)
  end)
  local asked = record.asked or { name = "operation " .. operation }
  tree:add(f.client, tvb(at + 160, 16))
  tree:add_le(f.number, tvb(at + 200, 8))
  tree:add(f.operation, tvb(at + 208, 1))
  tree:add_le(f.status, tvb(at + 216, 4))
  if asked.code then
    tree:add(f.code, tvb(at + 208, 1), asked.code):set_generated()
  end
  common.show_matching(tree, matching, record, pinfo)
  local status, begin = tvb(at + 216, 4):le_uint(), C_HEAD_BYTES
  if tables.results[operation] and bytes >= begin + 4 then
    local results = tvb(at + begin, 4):le_uint()
    begin = begin + 4
    if results == 1 and bytes >= begin + 8 then
      status, begin = tvb(at + begin + 4, 4):le_uint(), begin + 8
      tree:add_le(f.status, tvb(at + C_HEAD_BYTES + 8, 4))
    end
  end
  show_outcome(tree, status, record)
  local title = asked.name .. " response"
  if status ~= 0 then
    title = title .. " " .. (tables.status[status] or status)
  end
  if bytes > begin then
    local body = tvb(at + begin, bytes - begin)
    local branch = tree:add(f.body, body)
    if status == 0 and not show_reply_body(body, asked.code, branch, "C") then
      branch:add_proto_expert_info(e.malformed, "body is no answer to " .. asked.name)
    end
  end
  tree:set_text("Iggy " .. title)
  common.tell(pinfo, "Iggy", count, title)
end

local function c_length(tvb, at)
  if tvb:len() - at < C_SIZE_END then
    return nil -- more is needed to tell
  end
  local size, command = tvb(at + 48, 4):le_uint(), tvb(at + 60, 1):uint()
  if size < C_HEAD_BYTES or size > FRAME_BYTES_MAX
    or (command ~= REQUEST and command ~= REPLY and command ~= EVICTION) then
    return nil, string.format("size %d, command %d", size, command)
  end
  return size
end

-- Both sides -------------------------------------------------------------------------------------

local function request_length(tvb, at, connection)
  local length = tvb(at, 4):le_uint()
  connection.has_heads = length == 0
  if connection.has_heads then
    return c_length(tvb, at)
  end
  if length < 4 or length > FRAME_BYTES_MAX then
    return nil, string.format("length %d outside 4..%d", length, FRAME_BYTES_MAX)
  end
  return 4 + length
end

local function reply_length(tvb, at, connection)
  if connection.has_heads then
    return c_length(tvb, at)
  end
  local status, length = tvb(at, 4):le_uint(), tvb(at + 4, 4):le_uint()
  if length > RESPONSE_BYTES_MAX then
    return nil, string.format("length %d outside 0..%d", length, RESPONSE_BYTES_MAX)
  end
  return (status == 0 and length <= 1) and HEAD_BYTES or HEAD_BYTES + length
end

local function is_request(pinfo, connection)
  if connection.server == nil then
    local match = pinfo.match_uint
    connection.server = (pinfo.src_port == match and pinfo.dst_port ~= match) and pinfo.src_port
      or pinfo.dst_port
  end
  return pinfo.dst_port == connection.server
end

function proto.dissector(tvb, pinfo, root)
  local connection = common.connection(connections, pinfo)
  if common.is_tls(connection, tvb) then
    return common.call_tls(tvb, pinfo, root)
  end
  local asks = is_request(pinfo, connection)
  local length_of = asks and request_length or reply_length
  return common.each_frame(tvb, pinfo, HEAD_BYTES,
    function(at) return length_of(tvb, at, connection) end,
    function(at, bytes)
      local show
      if connection.has_heads then
        show = asks and show_c_request or show_c_reply
      else
        show = asks and show_request or show_reply
      end
      show(tvb, pinfo, root, at, bytes, connection)
    end,
    function(at, text)
      common.tell(pinfo, "Iggy", 1, "malformed")
      root:add(proto, tvb(at)):add_proto_expert_info(e.malformed, text)
    end)
end

-- On other ports only a login or a PING, exactly as long as it says, begins a connection.
local function looks_like(tvb, pinfo, root)
  if tvb:len() < HEAD_BYTES then
    return false
  end
  local length, code = tvb(0, 4):le_uint(), tvb(4, 4):le_uint()
  if length + 4 ~= tvb:len() or not LOGINS[code] or (code == 1 and length ~= 4) then
    return false
  end
  if code ~= 1 and (tvb:len() < 9 or tvb(8, 1):uint() == 0 or tvb(8, 1):uint() > length - 5) then
    return false
  end
  pinfo.conversation = proto
  common.connection(connections, pinfo).server = pinfo.dst_port
  proto.dissector(tvb, pinfo, root)
  return true
end

local tcp_ports, ports = DissectorTable.get("tcp.port"), proto.prefs.ports
tcp_ports:add(ports, proto)
DissectorTable.get("tls.port"):add(ports, proto)
function proto.prefs_changed()
  if ports ~= proto.prefs.ports then
    tcp_ports:remove(ports, proto)
    DissectorTable.get("tls.port"):remove(ports, proto)
    ports = proto.prefs.ports
    tcp_ports:add(ports, proto)
    DissectorTable.get("tls.port"):add(ports, proto)
  end
end
proto:register_heuristic("tcp", looks_like)
