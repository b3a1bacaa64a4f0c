-- SBP: the protocol of placement managers, data nodes and their clients.
-- Layout: docs/protocols/sbp.md. Header tables are read by the generated description.

local folder = (__DIR__ or ""):gsub("[/\\]*$", "/")
local tables = dofile(folder .. "headrace_tables.lua").sbp
local common = dofile(folder .. "headrace_common.lua")

local MAGIC, BATCH_MAGIC = 23, 0x23
local OVERHEAD, HEAD_BYTES, BATCH_HEADER_BYTES = 16, 16, 55
local FRAME_BYTES_MAX = 16 * 1024 * 1024
local TABLES_MAX, BATCHES_MAX = 4096, 1000 -- shown of one frame

local proto = Proto("sbp", "Streaming Batch Protocol")
local names = {}
for code, row in pairs(tables.opcodes) do
  names[code] = row.name
end

local f = {
  length = ProtoField.uint32("sbp.length", "Length"),
  magic = ProtoField.uint8("sbp.magic", "Magic"),
  opcode = ProtoField.uint16("sbp.opcode", "Operation", base.HEX, names),
  flags = ProtoField.uint8("sbp.flags", "Flags", base.HEX),
  response = ProtoField.bool("sbp.flags.response", "Response", 8, nil, 1),
  last = ProtoField.bool("sbp.flags.end", "Last frame of the response", 8, nil, 2),
  system_error = ProtoField.bool("sbp.flags.system_error", "System error", 8, nil, 4),
  id = ProtoField.uint32("sbp.id", "Request id"),
  header_format = ProtoField.uint8("sbp.header_format", "Header format"),
  header_length = ProtoField.uint24("sbp.header_length", "Header length"),
  header = ProtoField.bytes("sbp.header", "Header"),
  payload = ProtoField.bytes("sbp.payload", "Payload"),
  checksum = ProtoField.uint32("sbp.checksum", "Payload CRC-32", base.HEX),
  batch = ProtoField.bytes("sbp.batch", "Record batch"),
  base_offset = ProtoField.int64("sbp.batch.base_offset", "Base offset"),
  batch_length = ProtoField.int32("sbp.batch.length", "Length"),
  batch_crc = ProtoField.uint32("sbp.batch.crc", "CRC32C", base.HEX),
  attributes = ProtoField.uint16("sbp.batch.attributes", "Attributes", base.HEX),
  record_count = ProtoField.int32("sbp.batch.record_count", "Records"),
  base_timestamp = ProtoField.int64("sbp.batch.base_timestamp", "Base timestamp (ms)"),
  max_timestamp = ProtoField.int64("sbp.batch.max_timestamp", "Largest timestamp (ms)"),
  producer_id = ProtoField.int64("sbp.batch.producer_id", "Producer"),
  sequence = ProtoField.int64("sbp.batch.sequence", "Sequence"),
}
local matching = common.matching_fields("sbp")

local KINDS = {
  bool = { 1, ProtoField.bool }, i8 = { 1, ProtoField.int64 }, i16 = { 2, ProtoField.int64 },
  i32 = { 4, ProtoField.int64 }, i64 = { 8, ProtoField.int64 },
}
local REFERENCES = {
  string = ProtoField.string, octets = ProtoField.bytes, i64_vector = ProtoField.int64,
}
local shown = {} -- filter name -> field
for _, described in pairs(tables.tables) do
  for _, field in pairs(described.fields) do
    local abbreviation = "sbp." .. described.filter .. "." .. field.name
    local make = KINDS[field.kind] and KINDS[field.kind][2] or REFERENCES[field.kind]
    if make then
      shown[abbreviation] = make(abbreviation, field.name)
    end
    field.filter = abbreviation
  end
end
local status_text = ProtoField.string("sbp.status.name", "Status")

local all = common.values(f)
for _, list in ipairs({ common.values(matching), common.values(shown), { status_text } }) do
  for _, field in ipairs(list) do
    all[#all + 1] = field
  end
end
proto.fields = all

local e = {
  malformed = ProtoExpert.new("sbp.malformed", "Malformed frame", expert.group.MALFORMED,
    expert.severity.ERROR),
  unknown = ProtoExpert.new("sbp.unknown_opcode", "Unknown operation", expert.group.UNDECODED,
    expert.severity.WARN),
  failed = ProtoExpert.new("sbp.failed", "The request failed", expert.group.RESPONSE_CODE,
    expert.severity.NOTE),
}
proto.experts = common.values(e)
proto.prefs.ports = Pref.range("TCP ports", "10911,12378", "Of data nodes and placement managers.",
  65535)

local connections = {}
function proto.init()
  connections = {}
end

-- FlatBuffers ------------------------------------------------------------------------------------

local function le16(data, at)
  return at >= 0 and at + 2 <= data:len() and data(at, 2):le_uint() or nil
end

local function le32(data, at)
  return at >= 0 and at + 4 <= data:len() and data(at, 4):le_uint() or nil
end

local show_table

local function show_reference(data, at, field, tree, budget)
  local distance = le32(data, at)
  local target = distance and at + distance
  if field.kind == "table" then
    return target and show_table(data, target, field.table, tree, field.name, budget)
  end
  local count = target and le32(data, target)
  if count == nil then
    return false
  end
  local first = target + 4
  if field.kind == "string" or field.kind == "octets" then
    if first + count > data:len() then
      return false
    end
    local range = data(first, count)
    if count == 0 then
      return true
    elseif common.is_secret(field.name) then
      tree:add(range, field.name .. ": •••")
    elseif field.kind == "string" then
      tree:add(shown[field.filter], range, range:string(ENC_UTF_8))
    else
      tree:add(shown[field.filter], range)
    end
    return true
  end
  local width = field.kind == "i64_vector" and 8 or 4
  if first + count * width > data:len() then
    return false
  end
  for index = 0, count - 1 do
    local place = first + index * width
    if width == 8 then
      budget.left = budget.left - 1
      if budget.left < 0 then
        return false
      end
      tree:add_le(shown[field.filter], data(place, 8))
    else
      local inner = place + data(place, 4):le_uint()
      local title = string.format("%s [%d]", field.name, index)
      if not show_table(data, inner, field.table, tree, title, budget) then
        return false
      end
    end
  end
  return true
end

-- False where the bytes are no such table.
show_table = function(data, at, name, tree, title, budget)
  budget.left = budget.left - 1
  if budget.left < 0 or at < 0 or at + 4 > data:len() then
    return false
  end
  local vtable = at - data(at, 4):le_int()
  local vtable_bytes, table_bytes = le16(data, vtable), le16(data, vtable + 2)
  if not vtable_bytes or not table_bytes or vtable_bytes < 4 or vtable + vtable_bytes > data:len()
    or table_bytes < 4 or at + table_bytes > data:len() then
    return false
  end
  local described = tables.tables[name]
  local branch = tree:add(data(at, table_bytes), title .. ": " .. name)
  for id = 0, (vtable_bytes - 4) / 2 - 1 do
    local field, position = described.fields[id], le16(data, vtable + 4 + 2 * id)
    if field and position and position > 0 then
      local place, kind = at + position, KINDS[field.kind]
      if position + (kind and kind[1] or 4) > table_bytes then
        return false
      end
      if kind then
        branch:add_le(shown[field.filter], data(place, kind[1]))
        if name == "Status" and field.name == "code" then
          local code = data(place, 2):le_int()
          if code ~= 0 then
            budget.status = code
            branch:add(status_text, data(place, 2), tables.status[code] or tostring(code))
          end
        end
      elseif not show_reference(data, place, field, branch, budget) then
        return false
      end
    end
  end
  return true
end

local function show_header(range, name, tree, budget)
  local data = range:tvb()
  local root = le32(data, 0)
  return root and show_table(data, root, name, tree, "Header", budget)
end

-- Record batches ---------------------------------------------------------------------------------

local function show_batches(range, tree)
  local at, count = 0, 0
  while range:len() - at >= BATCH_HEADER_BYTES and count < BATCHES_MAX do
    local length = range(at + 9, 4):int()
    if range(at, 1):uint() ~= BATCH_MAGIC or length < BATCH_HEADER_BYTES - 13
      or 13 + length > range:len() - at then
      return at > 0
    end
    local branch = tree:add(f.batch, range(at, 13 + length))
    branch:set_text(string.format("Record batch: %d records from offset %s",
      range(at + 19, 4):int(), tostring(range(at + 1, 8):int64())))
    branch:add(f.base_offset, range(at + 1, 8))
    branch:add(f.batch_length, range(at + 9, 4))
    branch:add(f.batch_crc, range(at + 13, 4))
    branch:add(f.attributes, range(at + 17, 2))
    branch:add(f.record_count, range(at + 19, 4))
    branch:add(f.base_timestamp, range(at + 23, 8))
    branch:add(f.max_timestamp, range(at + 31, 8))
    branch:add(f.producer_id, range(at + 39, 8))
    branch:add(f.sequence, range(at + 47, 8))
    at, count = at + 13 + length, count + 1
  end
  return at > 0
end

-- Frames -----------------------------------------------------------------------------------------

local function frame_length(tvb, at)
  local length = tvb(at, 4):uint()
  if length < OVERHEAD or length > FRAME_BYTES_MAX then
    return nil, string.format("length %d outside %d..%d", length, OVERHEAD, FRAME_BYTES_MAX)
  end
  return length + 4
end

local function show_frame(tvb, pinfo, root, at, bytes, connection)
  local opcode, flags = tvb(at + 5, 2):uint(), tvb(at + 7, 1):uint()
  local id, header_length = tvb(at + 8, 4):uint(), tvb(at + 13, 3):uint()
  local is_response = flags % 2 == 1
  local row = tables.opcodes[opcode]
  local name = row and row.name or string.format("0x%04x", opcode)
  local record, count = common.remembered(connection, pinfo, function()
    if is_response then
      return common.answer_to(connection, pinfo, id)
    end
    return common.ask_as(connection, pinfo, id, {})
  end)
  local title = name .. (is_response and " response" or "")
  common.tell(pinfo, "SBP", count, title .. " " .. id)
  local tree = root:add(proto, tvb(at, bytes), "SBP " .. title .. ", id " .. id)
  tree:add(f.length, tvb(at, 4))
  local magic = tree:add(f.magic, tvb(at + 4, 1))
  local operation = tree:add(f.opcode, tvb(at + 5, 2))
  local bits = tree:add(f.flags, tvb(at + 7, 1))
  bits:add(f.response, tvb(at + 7, 1))
  bits:add(f.last, tvb(at + 7, 1))
  bits:add(f.system_error, tvb(at + 7, 1))
  tree:add(f.id, tvb(at + 8, 4))
  tree:add(f.header_format, tvb(at + 12, 1))
  tree:add(f.header_length, tvb(at + 13, 3))
  common.show_matching(tree, matching, record, pinfo)
  if tvb(at + 4, 1):uint() ~= MAGIC then
    magic:add_proto_expert_info(e.malformed, "magic is not 23")
    return
  end
  if header_length > bytes - HEAD_BYTES - 4 then
    tree:add_proto_expert_info(e.malformed, "header is longer than its frame")
    return
  end
  if row == nil then
    operation:add_proto_expert_info(e.unknown)
  end
  local kind = row and (is_response and row.response or row.request)
  if math.floor(flags / 4) % 2 == 1 then
    kind = "SystemErrorResponse"
  end
  local budget = { left = TABLES_MAX }
  if header_length > 0 then
    local range = tvb(at + HEAD_BYTES, header_length)
    local header = tree:add(f.header, range)
    if kind and not show_header(range, kind, tree, budget) then
      header:add_proto_expert_info(e.malformed, "header is no " .. kind)
    end
  end
  if budget.status then
    tree:add_proto_expert_info(e.failed,
      "Status " .. (tables.status[budget.status] or budget.status))
  end
  local payload_at = at + HEAD_BYTES + header_length
  local payload_length = bytes - HEAD_BYTES - header_length - 4
  if payload_length > 0 then
    local range = tvb(payload_at, payload_length)
    show_batches(range, tree:add(f.payload, range))
  end
  tree:add(f.checksum, tvb(at + bytes - 4, 4))
end

function proto.dissector(tvb, pinfo, root)
  local connection = common.connection(connections, pinfo)
  if common.is_tls(connection, tvb) then
    return common.call_tls(tvb, pinfo, root)
  end
  return common.each_frame(tvb, pinfo, HEAD_BYTES,
    function(at) return frame_length(tvb, at) end,
    function(at, bytes) show_frame(tvb, pinfo, root, at, bytes, connection) end,
    function(at, text)
      common.tell(pinfo, "SBP", 1, "malformed")
      root:add(proto, tvb(at)):add_proto_expert_info(e.malformed, text)
    end)
end

local function looks_like(tvb, pinfo, root)
  if tvb:len() < HEAD_BYTES or frame_length(tvb, 0) == nil then
    return false
  end
  if tvb(4, 1):uint() ~= MAGIC or not tables.opcodes[tvb(5, 2):uint()]
    or tvb(7, 1):uint() > 7 or tvb(12, 1):uint() > 1
    or tvb(13, 3):uint() + OVERHEAD > tvb(0, 4):uint() then
    return false
  end
  pinfo.conversation = proto
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
