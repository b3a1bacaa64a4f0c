-- The umbilical: Hadoop RPC version 9 between the controller and its containers, on any port.
-- Layout: docs/protocols/umbilical.md. Messages are read by the generated description.

local folder = (__DIR__ or ""):gsub("[/\\]*$", "/")
local tables = dofile(folder .. "headrace_tables.lua").umbilical
local common = dofile(folder .. "headrace_common.lua")

local PREAMBLE_BYTES, LENGTH_BYTES = 7, 4
local FRAME_BYTES_MAX = 64 * 1024 * 1024
local FIELDS_MAX, DEPTH_MAX = 4096, 12 -- shown of one frame
local OTHER_CALLS = { [-3] = "context", [-4] = "ping", [-33] = "login" }

local proto = Proto("umbilical", "Headrace umbilical (Hadoop RPC)")
local f = {
  version = ProtoField.uint8("umbilical.version", "Version"),
  service = ProtoField.uint8("umbilical.service", "Service class"),
  auth = ProtoField.uint8("umbilical.auth", "Authentication", base.HEX,
    { [0] = "none", [0xdf] = "SASL" }),
  length = ProtoField.uint32("umbilical.length", "Length"),
  call = ProtoField.int32("umbilical.call", "Call"),
  method = ProtoField.string("umbilical.method", "Method"),
  failed = ProtoField.string("umbilical.exception", "Exception"),
  part = ProtoField.bytes("umbilical.part", "Message"),
}
local matching = common.matching_fields("umbilical")
local INTEGERS = {
  int32 = true, int64 = true, uint32 = true, uint64 = true, sint32 = true, sint64 = true,
}
local shown = {}
for _, described in pairs(tables.messages) do
  for _, field in pairs(described.fields) do
    local abbreviation = "umbilical." .. described.filter .. "." .. field.name
    field.filter = abbreviation
    if INTEGERS[field.kind] then
      shown[abbreviation] = ProtoField.int64(abbreviation, field.name)
    elseif field.kind == "bool" then
      shown[abbreviation] = ProtoField.bool(abbreviation, field.name)
    elseif field.kind == "double" then
      shown[abbreviation] = ProtoField.double(abbreviation, field.name)
    elseif field.kind == "bytes" then
      shown[abbreviation] = ProtoField.bytes(abbreviation, field.name)
    elseif field.kind == "string" or field.kind == "enum" then
      shown[abbreviation] = ProtoField.string(abbreviation, field.name)
    end
  end
end
local all = common.values(f)
for _, list in ipairs({ common.values(matching), common.values(shown) }) do
  for _, field in ipairs(list) do
    all[#all + 1] = field
  end
end
proto.fields = all

local e = {
  malformed = ProtoExpert.new("umbilical.malformed", "Malformed frame", expert.group.MALFORMED,
    expert.severity.ERROR),
  failed = ProtoExpert.new("umbilical.failed", "The call failed", expert.group.RESPONSE_CODE,
    expert.severity.NOTE),
}
proto.experts = common.values(e)

local connections = {}
function proto.init()
  connections = {}
end

-- protobuf ---------------------------------------------------------------------------------------

-- Two halves of 32 bits and the next position, or nil: Lua's numbers hold 53 bits.
local function varint(data, at)
  local low, high = 0, 0
  for index = 0, 9 do
    if at >= data:len() then
      return nil
    end
    local byte = data(at, 1):uint()
    local bits, shift = byte % 128, 7 * index
    at = at + 1
    if shift < 28 then
      low = low + bits * 2 ^ shift
    elseif shift == 28 then
      low = low + (bits % 16) * 2 ^ 28
      high = math.floor(bits / 16)
    elseif shift < 63 then
      high = high + bits * 2 ^ (shift - 32)
    else
      high = high + (bits % 2) * 2 ^ 31
    end
    if byte < 128 then
      return low, high % 2 ^ 32, at
    end
  end
  return nil
end

local function to_int64(low, high)
  return Int64.new(low, high)
end

-- A small signed number: call ids, retries, enumerations.
local function to_number(low, high)
  if high >= 2 ^ 31 then
    return low - 2 ^ 32
  end
  return high * 2 ^ 32 + low
end

local function unzigzag(low, high)
  local odd = low % 2 == 1
  low = math.floor(low / 2) + (high % 2) * 2 ^ 31
  high = math.floor(high / 2)
  if odd then -- all bits turned over
    low, high = 2 ^ 32 - 1 - low, 2 ^ 32 - 1 - high
  end
  return low, high
end

local function show_varint(range, field, low, high, tree)
  if field.kind == "sint32" or field.kind == "sint64" then
    low, high = unzigzag(low, high)
  end
  local item = shown[field.filter]
  if item == nil then
    return
  elseif field.kind == "bool" then
    tree:add(item, range, low ~= 0 or high ~= 0)
  elseif field.kind == "enum" then
    local number = to_number(low, high)
    tree:add(item, range, tables.enums[field.enum][number] or tostring(number))
  elseif INTEGERS[field.kind] then
    tree:add(item, range, to_int64(low, high))
  end
end

local show_message

local function show_bytes(range, field, tree, budget, depth, found)
  local item = shown[field.filter]
  if field.kind == "message" then
    local branch = tree:add(range, field.name)
    return show_message(range, field.message, branch, budget, depth + 1)
  elseif field.kind == "string" then
    local text = range:len() > 0 and range:string(ENC_UTF_8) or ""
    found[field.name] = text
    tree:add(item, range, text)
  elseif field.kind == "bytes" and range:len() > 0 then
    if common.is_secret(field.name) then
      tree:add(range, field.name .. ": •••")
    else
      tree:add(item, range)
    end
  elseif INTEGERS[field.kind] or field.kind == "enum" or field.kind == "bool" then -- packed
    local at = 0
    while at < range:len() do
      local low, high, next_at = varint(range, at)
      budget.left = budget.left - 1
      if low == nil or budget.left < 0 then
        return nil
      end
      show_varint(range(at, next_at - at), field, low, high, tree)
      at = next_at
    end
  end
  return found
end

-- What plain fields said, by name; nil where the bytes are no such message.
show_message = function(range, name, tree, budget, depth)
  local described, found, at = tables.messages[name], {}, 0
  if depth > DEPTH_MAX then
    return nil
  end
  while at < range:len() do
    budget.left = budget.left - 1
    local low, high, body = varint(range, at)
    if low == nil or budget.left < 0 then
      return nil
    end
    local kind, number = low % 8, math.floor(low / 8) + high * 2 ^ 29
    local field = described.fields[number]
    if kind == 0 then
      local value_low, value_high, next_at = varint(range, body)
      if value_low == nil then
        return nil
      end
      if field then
        local piece = range(at, next_at - at)
        show_varint(piece, field, value_low, value_high, tree)
        if field.kind == "sint32" then
          value_low, value_high = unzigzag(value_low, value_high)
        end
        found[field.name] = to_number(value_low, value_high)
      end
      at = next_at
    elseif kind == 2 then
      local length, upper, begin = varint(range, body)
      if length == nil or upper > 0 or length > range:len() - begin then
        return nil
      end
      if length == 0 then
        if field and field.kind == "string" then
          found[field.name] = ""
        end
      elseif field and not show_bytes(range(begin, length), field, tree, budget, depth, found) then
        return nil
      end
      at = begin + length
    elseif kind == 1 or kind == 5 then
      local width = kind == 1 and 8 or 4
      if body + width > range:len() then
        return nil
      end
      if field and field.kind == "double" and width == 8 then
        tree:add_le(shown[field.filter], range(body, 8))
      end
      at = body + width
    else
      return nil
    end
  end
  return found
end

-- Frames -----------------------------------------------------------------------------------------

local function is_preamble(tvb, at)
  return tvb:len() - at >= 4 and tvb(at, 4):string() == "hrpc"
end

local function frame_length(tvb, at)
  if is_preamble(tvb, at) then
    return PREAMBLE_BYTES
  end
  local length = tvb(at, 4):uint()
  if length > FRAME_BYTES_MAX then
    return nil, string.format("length %d outside 0..%d", length, FRAME_BYTES_MAX)
  end
  return length + LENGTH_BYTES
end

-- A varint length and that many bytes: the part and where the next one begins. nil and false where
-- the frame ends, nil and true where it is cut.
local function part(body, at)
  if at >= body:len() then
    return nil, false
  end
  local length, upper, begin = varint(body, at)
  if length == nil or upper > 0 or length > body:len() - begin then
    return nil, true
  end
  return length > 0 and body(begin, length) or false, begin + length
end

local function show_part(body, at, name, tree, budget)
  local range, next_at = part(body, at)
  if range == nil then
    return nil
  end
  if range == false then
    return {}, next_at
  end
  local branch = tree:add(f.part, range)
  branch:set_text(name)
  local found = show_message(range, name, branch, budget, 0)
  return found, next_at
end

local function show_request(body, pinfo, tree, connection, budget)
  local header, at = show_part(body, 0, "RpcRequestHeaderProto", tree, budget)
  if header == nil then
    return nil, "no request header"
  end
  local call = header.call_id or 0
  local title, problem = OTHER_CALLS[call], nil
  if call == -3 then
    problem = show_part(body, at, "IpcConnectionContextProto", tree, budget) == nil
  elseif call == -33 then
    problem = show_part(body, at, "RpcSaslProto", tree, budget) == nil
  elseif title == nil then
    local method
    method, at = show_part(body, at, "RequestHeaderProto", tree, budget)
    title = method and method.method_name or "?"
    local row = tables.calls[title]
    problem = method == nil or (row and show_part(body, at, row.request, tree, budget) == nil)
  end
  local record, count = common.remembered(connection, pinfo, function()
    return common.ask_as(connection, pinfo, call, { method = title })
  end)
  tree:add(f.call, body, call):set_generated()
  tree:add(f.method, body, title):set_generated()
  common.show_matching(tree, matching, record, pinfo)
  common.tell(pinfo, "Umbilical", count, title)
  return title, problem and "message cannot be read" or nil
end

local function show_response(body, pinfo, tree, connection, budget)
  local header, at = show_part(body, 0, "RpcResponseHeaderProto", tree, budget)
  if header == nil then
    return nil, "no response header"
  end
  local call = header.call_id or 0
  if call >= 2 ^ 31 then
    call = call - 2 ^ 32 -- an unsigned field that holds a signed number
  end
  local record, count = common.remembered(connection, pinfo, function()
    return common.answer_to(connection, pinfo, call)
  end)
  local method = record.asked and record.asked.method or OTHER_CALLS[call] or "?"
  local title, problem = method .. " response", nil
  if (header.status or 0) ~= 0 then
    title = method .. " refused"
    tree:add(f.failed, body, header.exception_class_name or ""):set_generated()
    tree:add_proto_expert_info(e.failed, header.error_msg or "refused")
  elseif call == -33 then
    problem = show_part(body, at, "RpcSaslProto", tree, budget) == nil
  elseif tables.calls[method] then
    problem = show_part(body, at, tables.calls[method].response, tree, budget) == nil
  end
  tree:add(f.call, body, call):set_generated()
  tree:add(f.method, body, method):set_generated()
  common.show_matching(tree, matching, record, pinfo)
  common.tell(pinfo, "Umbilical", count, title)
  return title, problem and "message cannot be read" or nil
end

local function show_preamble(tvb, pinfo, root, at, connection)
  connection.client = pinfo.src_port
  local _, count = common.remembered(connection, pinfo, function() return {} end)
  common.tell(pinfo, "Umbilical", count, "hello")
  local tree = root:add(proto, tvb(at, PREAMBLE_BYTES), "Umbilical hello")
  tree:add(f.version, tvb(at + 4, 1))
  tree:add(f.service, tvb(at + 5, 1))
  tree:add(f.auth, tvb(at + 6, 1))
end

local function show_frame(tvb, pinfo, root, at, bytes, connection)
  if is_preamble(tvb, at) then
    return show_preamble(tvb, pinfo, root, at, connection)
  end
  local tree = root:add(proto, tvb(at, bytes), "Umbilical")
  tree:add(f.length, tvb(at, LENGTH_BYTES))
  local title, problem
  if bytes == LENGTH_BYTES then
    problem = "an empty frame"
  else
    local body = tvb(at + LENGTH_BYTES, bytes - LENGTH_BYTES)
    local show = pinfo.src_port == connection.client and show_request or show_response
    title, problem = show(body, pinfo, tree, connection, { left = FIELDS_MAX })
  end
  tree:set_text("Umbilical " .. (title or "frame"))
  if problem then
    if title == nil then
      common.tell(pinfo, "Umbilical", 1, "malformed")
    end
    tree:add_proto_expert_info(e.malformed, problem)
  end
end

function proto.dissector(tvb, pinfo, root)
  local connection = common.connection(connections, pinfo)
  return common.each_frame(tvb, pinfo, LENGTH_BYTES,
    function(at) return frame_length(tvb, at) end,
    function(at, bytes) show_frame(tvb, pinfo, root, at, bytes, connection) end,
    function(at, text)
      common.tell(pinfo, "Umbilical", 1, "malformed")
      root:add(proto, tvb(at)):add_proto_expert_info(e.malformed, text)
    end)
end

local function looks_like(tvb, pinfo, root)
  if not is_preamble(tvb, 0) then
    return false
  end
  pinfo.conversation = proto
  proto.dissector(tvb, pinfo, root)
  return true
end

proto:register_heuristic("tcp", looks_like)
DissectorTable.get("tcp.port"):add_for_decode_as(proto)
