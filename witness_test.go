package headgate_test

func actAsChild() bool { return false }
