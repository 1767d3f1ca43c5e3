package headgate

// ReplyCodes are the errors of Redis that are known.
func ReplyCodes() []string {
	var codes []string
	for _, row := range replies {
		codes = append(codes, row.code)
	}
	return codes
}
