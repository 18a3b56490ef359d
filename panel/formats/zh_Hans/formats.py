"""Chinese days and times, for Django's `date` and `time` filters."""

DATE_FORMAT = "Y 年 n 月 j 日"
SHORT_DATE_FORMAT = "Y 年 n 月 j 日"
MONTH_DAY_FORMAT = "n 月 j 日"
TIME_FORMAT = "H:i"
DATETIME_FORMAT = "Y 年 n 月 j 日 H:i:s"
SHORT_DATETIME_FORMAT = "Y-m-d H:i"
FIRST_DAY_OF_WEEK = 1
