-- http-request lua.weir PATH asks weir about a request. If weir answers,
-- txn.weir becomes its status, and txn.ratelimit and so on its headers.
local variables = {
	["ratelimit"] = "txn.ratelimit",
	["ratelimit-policy"] = "txn.ratelimit_policy",
	["retry-after"] = "txn.retry_after",
}

core.register_action("weir", {"http-req"}, function(txn, path)
	local keys = txn.http:req_get_headers()["x-api-key"] or {}
	local answer = core.httpclient():get{
		url = "http://weir" .. path,
		dst = "abns@weir",
		headers = {
			["x-forwarded-for"] = {txn.f:src()},
			["x-forwarded-method"] = {txn.f:method()},
			["x-forwarded-uri"] = {txn.f:pathq()},
			["x-api-key"] = {keys[0], keys[1]}, -- weir refuses two; with a hundred, HAProxy crashes
		},
	}
	if answer.status == 0 or answer.status >= 500 then return end
	txn:set_var("txn.weir", answer.status)
	for name, variable in pairs(variables) do
		local values = answer.headers[name]
		if values then txn:set_var(variable, values[0]) end
	end
end, 1)
