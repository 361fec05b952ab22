# SPDX-License-Identifier: Apache-2.0
#
# Joins the lines of the descriptions of a CRD: kubectl explain breaks where the Go comment does. Paragraphs and items stay.

function flush() {
	if (text != "") print text
	text = ""
}

{
	match($0, /^ */)
	if (inside && $0 ~ /[^ ]/ && RLENGTH <= indent) {
		flush()
		inside = 0
	}
	if (!inside) {
		print
		if ($0 ~ /^ *description: \|-?$/) {
			inside = 1
			indent = RLENGTH
		}
	} else if ($0 !~ /[^ ]/) {
		flush()
		print
	} else if (text == "" || $0 ~ /^ *([-*]|[0-9]+\.) /) {
		flush()
		text = $0
	} else {
		sub(/^ */, "")
		text = text " " $0
	}
}

END { flush() }
