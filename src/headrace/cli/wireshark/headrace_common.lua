-- What the three dissectors share: frames across TCP segments, and what is remembered of a
-- connection. Loaded by them; as a plugin of its own it does nothing.

local common = {}

-- Loops over the frames of `tvb`. `length_of(at)` gives a frame's bytes, or nil and what is wrong,
-- or nil alone when more than `head_bytes` are needed to tell. `dissect(at, length)` shows one.
-- `malformed(at, text)` shows where the boundary was lost: the rest of the segment is given up, and
-- the next one is taken to begin a frame.
function common.each_frame(tvb, pinfo, head_bytes, length_of, dissect, malformed)
  local at, bytes = 0, tvb:len()
  while at < bytes do
    local left = bytes - at
    local length, problem
    if left >= head_bytes then
      length, problem = length_of(at)
      if problem then
        malformed(at, problem)
        return bytes
      end
    end
    if length == nil or left < length then
      if tvb:len() == tvb:reported_len() then
        pinfo.desegment_offset = at
        pinfo.desegment_len = length and (length - left) or DESEGMENT_ONE_MORE_SEGMENT
      else
        malformed(at, "frame cut short by the capture")
      end
      return bytes
    end
    dissect(at, length)
    at = at + length
  end
  return bytes
end

-- One table per TCP connection. `connections` is emptied by the protocol's `init`. (The number that
-- Wireshark gives a connection, tcp.stream, is not known where no tree is built.)
function common.connection(connections, pinfo)
  local here = tostring(pinfo.src) .. "|" .. pinfo.src_port
  local there = tostring(pinfo.dst) .. "|" .. pinfo.dst_port
  local key = here < there and here .. "|" .. there or there .. "|" .. here
  if connections[key] == nil then
    connections[key] = { records = {}, waiting = {}, first = 1, last = 0, by_id = {} }
  end
  return connections[key]
end

-- Both protocols also come inside TLS on the same port, told by the first bytes. From then on every
-- segment of the connection is TLS's, which calls our dissector again with what it could decrypt.
local inside_tls = false

function common.is_tls(connection, tvb)
  if inside_tls then
    return false
  end
  connection.tls = connection.tls or (connection.seen == nil and tvb:len() > 1
    and tvb(0, 2):uint() == 0x1603)
  connection.seen = true
  return connection.tls
end

function common.call_tls(tvb, pinfo, root)
  inside_tls = true
  pinfo.can_desegment = 2 -- each call takes one off; without any left TLS would not reassemble
  local ok, result = pcall(function() return Dissector.get("tls"):call(tvb, pinfo, root) end)
  inside_tls = false
  if not ok then
    error(result, 0)
  end
  return result
end

-- What was found when this frame was seen first: packets are dissected again when people click on
-- them, but replies can be matched only once, in order. Frames of one packet are told by counting.
function common.remembered(connection, pinfo, make)
  local count = tonumber(pinfo.private["headrace"] or "0") + 1
  pinfo.private["headrace"] = tostring(count)
  local key = pinfo.number .. ":" .. count
  if connection.records[key] == nil and not pinfo.visited then
    connection.records[key] = make()
  end
  return connection.records[key] or {}, count
end

-- The same for the frame that comes next in this packet, without going on to it.
function common.recall(connection, pinfo)
  local count = tonumber(pinfo.private["headrace"] or "0") + 1
  return connection.records[pinfo.number .. ":" .. count] or {}
end

function common.ask(connection, pinfo, record)
  record.number, record.time = pinfo.number, pinfo.abs_ts
  connection.last = connection.last + 1
  connection.waiting[connection.last] = record
  return record
end

-- The oldest request that has no reply yet.
function common.answer(connection, pinfo)
  local asked = connection.waiting[connection.first]
  if asked == nil then
    return {}
  end
  connection.waiting[connection.first] = nil
  connection.first = connection.first + 1
  asked.answer = pinfo.number
  return { asked = asked }
end

-- Replies name their request by a number.
function common.ask_as(connection, pinfo, id, record)
  record.number, record.time = pinfo.number, pinfo.abs_ts
  connection.by_id[id] = record
  return record
end

function common.answer_to(connection, pinfo, id)
  local asked = connection.by_id[id]
  if asked == nil then
    return {}
  end
  asked.answer = pinfo.number
  return { asked = asked }
end

-- The fields every protocol has for matching.
function common.matching_fields(prefix)
  return {
    request_in = ProtoField.framenum(prefix .. ".request_in", "Request in", base.NONE,
      frametype.REQUEST),
    response_in = ProtoField.framenum(prefix .. ".response_in", "Response in", base.NONE,
      frametype.RESPONSE),
    time = ProtoField.double(prefix .. ".time", "Seconds since the request"),
  }
end

function common.show_matching(tree, fields, record, pinfo)
  if record.asked then
    tree:add(fields.request_in, record.asked.number):set_generated()
    tree:add(fields.time, pinfo.abs_ts - record.asked.time):set_generated()
  elseif record.answer then
    tree:add(fields.response_in, record.answer):set_generated()
  end
end

-- Each frame of a packet adds its words to the packet's line.
function common.tell(pinfo, name, count, text)
  pinfo.cols.protocol = name
  if count == 1 then
    pinfo.cols.info = text
  else
    pinfo.cols.info:append(", " .. text)
  end
end

-- A secret is not shown in the tree; whoever has the capture has its bytes all the same.
function common.is_secret(name)
  return name:find("password", 1, true) ~= nil or name == "token" or name == "credential"
end

function common.values(map)
  local list = {}
  for _, value in pairs(map) do
    list[#list + 1] = value
  end
  return list
end

return common
