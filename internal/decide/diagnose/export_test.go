package diagnose

// Rules are the names of all rules, in the order in which they are tried.
func Rules() []string {
	names := make([]string, len(rules))
	for i, r := range rules {
		names[i] = r.name
	}
	return names
}
